#include "core/train/weight_average.h"

#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::train {

WeightAverage::WeightAverage(const job::AverageOptions& options, std::unique_ptr<Optimizer> rule,
                             model::ParamView& view, kernels::Backend& backend)
    : options_(options), rule_(std::move(rule)), view_(view), backend_(backend) {
  base::check(view.states().back() == model::kAverageState, "the average is the view's last state");
}

void WeightAverage::update(kernels::Stream& stream, const UpdateStep& step) {
  rule_->update(stream, step);
  if (step.step % options_.every != 0) return;
  for (const model::StatePart& part : view_.state_parts())
    backend_.average_update(stream, {.weights = part.master,
                                     .average = part.states.back(),
                                     .control = step.control,
                                     .decay = static_cast<float>(options_.decay)});
}

}  // namespace trainerd::core::train
