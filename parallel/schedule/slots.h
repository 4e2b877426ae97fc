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

/// The slot of each microbatch of one chunk in one lifetime class (-1: it has none), and how many slots there
/// are.
struct SlotTable {
  std::vector<int> slot_of_microbatch;
  int slots = 0;
};

/// Interval colouring of an action list: two microbatches share a slot when their lifetimes do not meet.
/// Greedy in order of birth, which is optimal for intervals.
SlotTable color_slots(std::span<const Action> actions, int chunk, int microbatches, Lifetime lifetime);

/// The same for what a rank receives, from its receive to the end of the computation that uses it: by chunk
/// of the rank (`chunk` / `stages`), in slots that all its chunks share. `receive` is recv_forward or
/// recv_backward.
struct ReceiveSlots {
  std::vector<std::vector<int>> slot_of_microbatch;
  int slots = 0;
};
ReceiveSlots color_receives(std::span<const Action> actions, const ScheduleShape& shape, ActionKind receive);

}  // namespace trainerd::parallel
