#pragma once

#include <memory>

#include "core/train/optimizer.h"

namespace trainerd::core::train {

/// Runs an update rule and then updates an exponential moving average of the weights, in the view's last
/// state: kernels::AverageUpdate.
class WeightAverage final : public Optimizer {
 public:
  WeightAverage(const job::AverageOptions& options, std::unique_ptr<Optimizer> rule, model::ParamView& view,
                kernels::Backend& backend);
  void update(kernels::Stream& stream, const UpdateStep& step) override;

 private:
  job::AverageOptions options_;
  std::unique_ptr<Optimizer> rule_;
  model::ParamView& view_;
  kernels::Backend& backend_;
};

}  // namespace trainerd::core::train
