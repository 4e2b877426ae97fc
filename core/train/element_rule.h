#pragma once

#include <string>
#include <vector>

#include "core/train/optimizer.h"

namespace trainerd::core::train {

/// A rule for each element by itself (AdamW, Lion, SGD): runs kernels::ParamUpdate on each part of the view.
class ElementRule final : public Optimizer {
 public:
  /// The rule of a job for what its optimizer updates by elements.
  static kernels::UpdateRule rule_of(const job::OptimizerOptions& options);
  static std::vector<std::string> states(kernels::UpdateRule rule);

  ElementRule(const job::JobSpec& job, model::ParamView& view, kernels::Backend& backend);
  void update(kernels::Stream& stream, const UpdateStep& step) override;

 private:
  job::OptimizerOptions options_;
  kernels::Rounding rounding_;
  model::ParamView& view_;
  kernels::Backend& backend_;
  double lr_factor_;                                       ///< factor on the schedule's learning rate
  std::vector<std::vector<kernels::UpdateRange>> ranges_;  ///< by state part
};

}  // namespace trainerd::core::train
