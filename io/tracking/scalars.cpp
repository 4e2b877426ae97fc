#include "io/tracking/scalars.h"

#include <algorithm>

namespace trainerd::io {

std::vector<std::pair<std::string, double>> scalars_of(const StepRecord& record) {
  std::vector<std::pair<std::string, double>> scalars{
      {"loss", record.loss},
      {"learning_rate", record.learning_rate},
      {"step_seconds", record.step_seconds},
      {"tokens", static_cast<double>(record.tokens)},
      {"tokens_per_second", record.tokens_per_second},
  };
  if (!record.overflow) scalars.emplace_back("grad_norm", record.grad_norm);
  if (record.z_loss) scalars.emplace_back("z_loss", *record.z_loss);
  if (record.expert_balance) scalars.emplace_back("expert_balance", *record.expert_balance);
  if (!record.expert_load.empty())
    scalars.emplace_back("expert_load",
                         *std::max_element(record.expert_load.begin(), record.expert_load.end()));
  if (const auto& r = record.rewards) {
    scalars.emplace_back("rewards/margin", r->margin);
    scalars.emplace_back("rewards/accuracy", r->accuracy);
    scalars.emplace_back("rewards/chosen", r->chosen);
    scalars.emplace_back("rewards/rejected", r->rejected);
  }
  for (const auto& [group, norm] : record.grad_norms) scalars.emplace_back("grad_norms/" + group, norm);
  if (record.loss_scale) scalars.emplace_back("loss_scale", *record.loss_scale);
  if (record.mfu) scalars.emplace_back("mfu", *record.mfu);
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    scalars.emplace_back(std::string("time/") + part.name, record.time[part.part]);
  return scalars;
}

std::vector<std::pair<std::string, double>> scalars_of(const EvaluationRecord& record) {
  std::vector<std::pair<std::string, double>> scalars;
  const auto add = [&scalars](const std::string& behind, const auto& of) {
    scalars.emplace_back("validation_loss" + behind, of.loss);
    if (of.rewards) {
      scalars.emplace_back("validation_reward_margin" + behind, of.rewards->margin);
      scalars.emplace_back("validation_pair_accuracy" + behind, of.rewards->accuracy);
    } else {
      scalars.emplace_back("validation_perplexity" + behind, perplexity(of.loss));
    }
    if (of.bits_per_byte) scalars.emplace_back("validation_bits_per_byte" + behind, *of.bits_per_byte);
  };
  add("", record);
  for (const ValidationRecord& set : record.sets) add("/" + set.set, set);
  for (const ChoiceRecord& set : record.choices) {
    scalars.emplace_back("accuracy/" + set.set, set.accuracy);
    scalars.emplace_back("accuracy_norm/" + set.set, set.accuracy_norm);
  }
  return scalars;
}

}  // namespace trainerd::io
