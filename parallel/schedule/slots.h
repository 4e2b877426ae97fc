#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// How long data that a walk leaves behind is needed. Pipeline lifetimes are not LIFO, so each class has
/// numbered slots. `backward` ends the first two and contains the third. If it is split, backward_input ends
/// the first and begins the third, and backward_weight ends the last two.
enum class Lifetime : std::uint8_t { forward_to_backward, forward_to_weight, backward_to_weight };
constexpr int kLifetimes = 3;
const char* to_string(Lifetime lifetime);

/// Slots of one rank's chunks. Chunks of one pool share its slots.
struct SlotTable {
  /// By chunk of the rank (ScheduleShape::place_of), then microbatch; -1: no slot.
  std::vector<std::vector<int>> slot_of_microbatch;
  std::vector<int> slots;  ///< number of slots, by pool
};

/// Interval colouring of a rank's action list: two microbatches of a pool's chunks share a slot if their
/// lifetimes do not overlap. Greedy in order of birth, which is optimal for intervals. `pool_of_chunk`: by
/// chunk of the rank, from 0.
SlotTable color_slots(std::span<const Action> actions, const ScheduleShape& shape,
                      std::span<const int> pool_of_chunk, Lifetime lifetime);

/// The same for received messages, from the receive to the end of the computation that uses it, in one pool
/// for all chunks. `receive` is recv_forward or recv_backward.
SlotTable color_receives(std::span<const Action> actions, const ScheduleShape& shape, ActionKind receive);

/// Pool of each chunk of a training rank, where one microbatch takes `sizes[i]` in chunk i. Chunks of the
/// same size share a pool, which is never larger than separate pools. A smaller size joins the pool of the
/// next larger one unless that increases the sum of slots times size. It usually joins, because slots of
/// other chunks are free at the time.
std::vector<int> slot_pools(const ScheduleShape& shape, int pipeline_rank,
                            std::span<const std::int64_t> sizes);

}  // namespace trainerd::parallel
