#include <algorithm>

#include "core/job/train_options.h"

namespace trainerd::core::job {

std::vector<BatchSpan> BatchOptions::spans(std::int64_t from, std::int64_t to) const {
  std::vector<BatchSpan> found;
  std::int64_t before = 0;  // steps before the stage
  const auto add = [&](std::int64_t size, std::int64_t end) {
    const std::int64_t steps = std::min(end, to) - std::max(before, from);
    if (steps > 0 && !found.empty() && found.back().global == size) found.back().steps += steps;
    else if (steps > 0) found.push_back({size, steps});
    before = end;
  };
  for (const BatchSpan& stage : ramp) add(stage.global, before + stage.steps);
  add(global, std::max(before, to));
  return found;
}

std::int64_t BatchOptions::of_step(std::int64_t step) const { return spans(step - 1, step).front().global; }

std::int64_t BatchOptions::sequences(std::int64_t from, std::int64_t to) const {
  std::int64_t sum = 0;
  for (const BatchSpan& span : spans(from, to)) sum += span.global * span.steps;
  return sum;
}

std::vector<std::int64_t> BatchOptions::sizes() const {
  std::vector<std::int64_t> all{global};
  for (const BatchSpan& stage : ramp)
    if (std::find(all.begin(), all.end(), stage.global) == all.end()) all.push_back(stage.global);
  return all;
}

}  // namespace trainerd::core::job
