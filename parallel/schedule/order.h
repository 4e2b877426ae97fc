#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// What one rank computes, in order: forwards and backwards, no transfers and no reductions. All four kinds
/// are one pattern, warm-up forwards, then one forward and one backward in turn, then the backwards that are
/// left; they differ in the number of warm-up forwards, in the order of the chunks, and in where weight
/// gradients go.
std::vector<Action> compute_order(const ScheduleShape& shape, int pipeline_rank);

}  // namespace trainerd::parallel
