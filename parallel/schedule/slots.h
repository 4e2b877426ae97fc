#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// How long what a walk leaves behind is needed. Pipeline lifetimes are not LIFO, so each class has numbered
/// slots. `backward` ends the first two and is all of the third; apart, backward_input ends the first and
/// begins the third, and backward_weight ends the last two.
enum class Lifetime : std::uint8_t { forward_to_backward, forward_to_weight, backward_to_weight };
constexpr int kLifetimes = 3;
const char* to_string(Lifetime lifetime);

/// Slots of one rank's chunks. Chunks of the same pool share its slots.
struct SlotTable {
  /// By chunk of the rank (`chunk` / `stages`), then microbatch; -1: it has none.
  std::vector<std::vector<int>> slot_of_microbatch;
  std::vector<int> slots;  ///< by pool
};

/// Interval colouring of a rank's action list: two microbatches of a pool's chunks share a slot when their
/// lifetimes do not meet. Greedy in order of birth, which is optimal for intervals. `pool_of_chunk`: by chunk
/// of the rank, from 0.
SlotTable color_slots(std::span<const Action> actions, const ScheduleShape& shape,
                      std::span<const int> pool_of_chunk, Lifetime lifetime);

/// The same for what a rank receives, from its receive to the end of the computation that uses it, in one
/// pool of all its chunks. `receive` is recv_forward or recv_backward.
SlotTable color_receives(std::span<const Action> actions, const ScheduleShape& shape, ActionKind receive);

/// The pool of each chunk of a training rank, where what a microbatch leaves in chunk i takes about
/// `sizes[i]`. Chunks of the same size share a pool, which is never larger than a pool for each. A smaller
/// size shares the pool of the next larger one where the sum of slots times size is not larger: with other
/// slots free at the time, that is the usual case.
std::vector<int> slot_pools(const ScheduleShape& shape, int pipeline_rank,
                            std::span<const std::int64_t> sizes);

}  // namespace trainerd::parallel
