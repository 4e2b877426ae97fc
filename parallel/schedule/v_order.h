#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Computations of all ranks, in order, where the model goes forth over all ranks and back again, so that the
/// first rank has both ends. `shape` has p > 1 stages and two chunks on each. Below, a forward, an input
/// gradient and a weight gradient take the same time, a unit, and there are m microbatches.
/// - zb_v (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 6): no rank waits between its
///   first and its last computation if m >= p: 6 m + p - 1 units. No rank holds more activations than the
///   first rank of 1F1B, 2 p of these chunks. Rank r is behind with at most 2 r + 1 weight gradients, as with
///   ZB-H1.
/// - v_half, v_min (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362): about a half
///   and a third of those activations, p + 2 and 2 ceil(p / 3) + 2 chunks, in at most 6 m + 3 p - 5 (with two
///   stages 6 m + 2) and 6 m + 4 p - 5 units if m >= p (1F1B: 6 m + 6 p - 6). Ranks are behind with at most 3
///   weight gradients.
/// - dualpipe_v (DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.2.1, in the form that
///   keeps one copy of the parameters): in the steady state a forward of one chunk and a backward of the
///   other take turns, so that each computes while the other waits for messages of experts. No rank holds
///   more than 2 p + 1 chunks' activations. 6 m + 2 p - 2 units if m >= 2 p.
std::vector<std::vector<Action>> v_orders(const ScheduleShape& shape);

}  // namespace trainerd::parallel
