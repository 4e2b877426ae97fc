#include "core/train/weight_average.h"

#include <algorithm>
#include <cmath>
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
  // A decay that fp32 rounds to 1 would keep the first weights forever.
  const float decay = std::min(static_cast<float>(options_.decay), std::nextafter(1.0f, 0.0f));
  for (const model::StatePart& part : view_.state_parts())
    backend_.average_update(stream, {.weights = part.master,
                                     .average = part.states.back(),
                                     .control = step.control,
                                     .decay = decay,
                                     .host_weights = part.host_master,
                                     .host_average = part.host_states});
}

}  // namespace trainerd::core::train
