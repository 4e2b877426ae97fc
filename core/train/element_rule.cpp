#include "core/train/element_rule.h"

#include "kernels/tensor/rng.h"

namespace trainerd::core::train {

using namespace kernels;

UpdateRule ElementRule::rule_of(const job::OptimizerOptions& options) {
  switch (options.kind) {
    case job::OptimizerKind::lion: return UpdateRule::lion;
    case job::OptimizerKind::sgd: return UpdateRule::sgd;
    case job::OptimizerKind::adamw:
    case job::OptimizerKind::muon: break;
  }
  return UpdateRule::adamw;
}

std::vector<std::string> ElementRule::states(UpdateRule rule) {
  if (has_second_moment(rule)) return {"moment1", "moment2"};
  return {"momentum"};
}

ElementRule::ElementRule(const job::JobSpec& job, model::ParamView& view, Backend& backend)
    : options_(job.optimizer),
      rounding_(job.precision.rounding),
      view_(view),
      backend_(backend),
      lr_factor_(options_.kind == job::OptimizerKind::muon ? options_.adamw_lr / options_.lr : 1) {
  for (const model::StatePart& part : view.state_parts()) {
    ranges_.push_back(part.ranges);
    for (UpdateRange& range : ranges_.back()) {
      range.weight_decay *= static_cast<float>(options_.weight_decay);
      range.key = mix_keys(range.key, job.seed);
    }
  }
}

void ElementRule::update(Stream& stream, const UpdateStep& step) {
  const UpdateRule rule = rule_of(options_);
  const double beta1 = rule == UpdateRule::sgd ? options_.momentum : options_.beta1;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const model::StatePart& part = view_.state_parts()[i];
    backend_.param_update(stream, {.ranges = ranges_[i],
                                   .grads = part.grads,
                                   .master = part.master,
                                   .moment1 = part.states[0],
                                   .moment2 = has_second_moment(rule) ? part.states[1] : Tensor{},
                                   .params = part.params,
                                   .control = step.control,
                                   .rule = rule,
                                   .lr = static_cast<float>(step.lr * lr_factor_),
                                   .beta1 = static_cast<float>(beta1),
                                   .beta2 = static_cast<float>(options_.beta2),
                                   .eps = static_cast<float>(options_.eps),
                                   .nesterov = options_.nesterov,
                                   .step = step.step,
                                   .rounding = rounding_,
                                   .host_grads = part.host_grads,
                                   .host_master = part.host_master,
                                   .host_moments = part.host_states,
                                   .host_params = part.host_params});
  }
}

}  // namespace trainerd::core::train
