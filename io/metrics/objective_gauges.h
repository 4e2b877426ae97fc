#pragma once

#include "io/metrics/families.h"
#include "io/records/records.h"

namespace trainerd::io {

/// What the latest step minimised beside its loss, what it says about pairs, groups of parameters and
/// experts, and its loss scale; each where the job has it.
class ObjectiveGauges {
 public:
  explicit ObjectiveGauges(prometheus::Registry& registry) : r_(registry) {}

  void show(const StepRecord& record) {
    if (record.z_loss) z_loss_.get().Set(*record.z_loss);
    if (record.expert_balance) expert_balance_.get().Set(*record.expert_balance);
    for (std::size_t layer = 0; layer < record.expert_load.size(); ++layer)
      if (record.expert_load[layer] > 0)  // a layer with experts
        expert_load_.Add({{"layer", std::to_string(layer)}}).Set(record.expert_load[layer]);
    if (const auto& r = record.rewards) {
      rewards_.Add({{"answer", "chosen"}}).Set(r->chosen);
      rewards_.Add({{"answer", "rejected"}}).Set(r->rejected);
      reward_margin_.get().Set(r->margin);
      reward_accuracy_.get().Set(r->accuracy);
    }
    if (record.loss_scale) {
      loss_scale_.get().Set(*record.loss_scale);
      overflows_.get().Increment(record.overflow ? 1 : 0);
    }
    for (const auto& [group, norm] : record.grad_norms) group_norms_.Add({{"group", group}}).Set(norm);
  }

 private:
  prometheus::Registry& r_;
  Single<prometheus::Gauge> z_loss_{gauge(
      r_, "trainerd_z_loss",
      "Term of the latest step that loss.z_loss adds to what is minimised; trainerd_loss is without it.")};
  Single<prometheus::Gauge> expert_balance_{
      gauge(r_, "trainerd_expert_balance_loss",
            "Term of the latest step that loss.expert_balance adds to what is minimised; trainerd_loss is "
            "without it.")};
  prometheus::Family<prometheus::Gauge>& expert_load_ =
      gauge(r_, "trainerd_expert_load_ratio",
            "Tokens of the layer's expert with the most in the latest step, over the mean of its experts: 1 "
            "if all are used alike.");
  prometheus::Family<prometheus::Gauge>& rewards_ = gauge(
      r_, "trainerd_pair_reward",
      "With loss.dpo, beta times what the model's log-probability of an answer is above the reference's: "
      "mean over the pairs of the latest step, by answer: chosen or rejected.");
  Single<prometheus::Gauge> reward_margin_{
      gauge(r_, "trainerd_pair_reward_margin", "The reward of the chosen answer less that of the rejected.")};
  Single<prometheus::Gauge> reward_accuracy_{
      gauge(r_, "trainerd_pair_accuracy_ratio",
            "Share of the latest step's pairs whose chosen answer has the higher reward.")};
  Single<prometheus::Gauge> loss_scale_{gauge(
      r_, "trainerd_loss_scale", "With precision.loss_scale, the factor of the latest step's gradients.")};
  Single<prometheus::Counter> overflows_{
      counter(r_, "trainerd_overflow_steps_total",
              "Steps of this process that updated nothing because their gradients overflowed in fp16.")};
  prometheus::Family<prometheus::Gauge>& group_norms_ =
      gauge(r_, "trainerd_group_grad_norm",
            "Gradient norm by group of parameters, before clipping, of the latest step that took it.");
};

}  // namespace trainerd::io
