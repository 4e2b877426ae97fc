#pragma once

#include "core/job/train_options.h"

namespace trainerd::core::train {

/// The learning rate of `step` (from 1) in a run of `steps`. See LrSchedule.
double learning_rate(const job::OptimizerOptions& optimizer, std::int64_t step, std::int64_t steps);

}  // namespace trainerd::core::train
