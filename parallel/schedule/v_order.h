#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Computations of all ranks of ZB-V (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 6), in
/// order. `shape` has several stages and two chunks on each: the model goes forth over all ranks and back
/// again, so the first rank has both ends. If a forward, an input gradient and a weight gradient take the
/// same time, no rank waits between its first and its last computation, given as many microbatches as stages.
/// No rank holds more activations than the first rank of 1F1B: 2 x stages of these chunks. Rank r is behind
/// with at most 2 r + 1 weight gradients, as with ZB-H1.
std::vector<std::vector<Action>> v_orders(const ScheduleShape& shape);

}  // namespace trainerd::parallel
