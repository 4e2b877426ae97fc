#include "core/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainerd::core::train {

double learning_rate(const job::OptimizerOptions& optimizer, std::int64_t step, std::int64_t steps) {
  const job::LrSchedule& schedule = optimizer.schedule;
  if (step <= schedule.warmup)
    return optimizer.lr * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  const double range = optimizer.lr - schedule.min_lr;
  // Progress after warm-up: 0 at its end, 1 at the last step.
  const auto progress = [&](std::int64_t from) {
    return steps <= from
               ? 1.0
               : std::clamp(static_cast<double>(step - from) / static_cast<double>(steps - from), 0.0, 1.0);
  };
  switch (schedule.kind) {
    case job::LrKind::constant: return optimizer.lr;
    case job::LrKind::linear: return optimizer.lr - range * progress(schedule.warmup);
    case job::LrKind::cosine:
      return schedule.min_lr + range * 0.5 * (1.0 + std::cos(std::numbers::pi * progress(schedule.warmup)));
    case job::LrKind::wsd: {
      const std::int64_t decay = schedule.decay > 0 ? schedule.decay : std::max<std::int64_t>(1, steps / 10);
      return step <= steps - decay ? optimizer.lr : optimizer.lr - range * progress(steps - decay);
    }
  }
  return optimizer.lr;
}

}  // namespace trainerd::core::train
