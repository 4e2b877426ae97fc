#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// The computations of one rank in order: forwards and backwards, no transfers and no reductions. All kinds
/// but those that go back (v_order.h) have one pattern: warm-up forwards, then one forward and one backward
/// in turn, then the remaining backwards. They differ in the number of warm-up forwards, the order of the
/// chunks, and the places of weight gradients.
std::vector<Action> compute_order(const ScheduleShape& shape, int pipeline_rank);
/// Those of all ranks.
std::vector<std::vector<Action>> compute_orders(const ScheduleShape& shape);

}  // namespace trainerd::parallel
