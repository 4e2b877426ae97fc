#pragma once

#include <string>
#include <vector>

#include "core/train/optimizer.h"

namespace trainerd::core::train {

/// AdamW: runs kernels::AdamwUpdate on each part of the view.
class AdamW final : public Optimizer {
 public:
  static std::vector<std::string> states() { return {"moment1", "moment2"}; }

  AdamW(const job::JobSpec& job, model::ParamView& view, kernels::Backend& backend);
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
