#include "parallel/schedule/slots.h"

#include <functional>
#include <queue>
#include <vector>

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

bool forwards(ActionKind kind) { return kind == ActionKind::forward || kind == ActionKind::forward_only; }
bool makes_input_grad(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}
bool makes_weight_grad(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

/// Numbered places, the lowest free one first.
class Slots {
 public:
  int take() {
    if (free_.empty()) return count_++;
    const int slot = free_.top();
    free_.pop();
    return slot;
  }
  void release(int slot) { free_.push(slot); }
  int count() const { return count_; }

 private:
  std::priority_queue<int, std::vector<int>, std::greater<>> free_;
  int count_ = 0;
};

/// One action, of a microbatch whose place is `slot`. `begins` and `ends` tell of its kind whether it is the
/// first or the last of a lifetime; one may be both.
void color(Slots& slots, int& slot, bool begins, bool ends) {
  if (begins) {
    base::check(slot < 0, "a microbatch begins once in an action list");
    slot = slots.take();
  }
  if (ends && slot >= 0) slots.release(slot);
}

}  // namespace

const char* to_string(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::forward_to_backward: return "forward_to_backward";
    case Lifetime::forward_to_weight: return "forward_to_weight";
    case Lifetime::backward_to_weight: return "backward_to_weight";
  }
  return "?";
}

SlotTable color_slots(std::span<const Action> actions, int chunk, int microbatches, Lifetime lifetime) {
  const bool from_backward = lifetime == Lifetime::backward_to_weight;
  const bool to_backward = lifetime == Lifetime::forward_to_backward;
  SlotTable table;
  table.slot_of_microbatch.assign(static_cast<std::size_t>(microbatches), -1);
  Slots slots;
  for (const Action& action : actions) {
    if (action.chunk != chunk) continue;
    const ActionKind kind = action.kind;
    color(
        slots, table.slot_of_microbatch.at(static_cast<std::size_t>(action.microbatch)),
        from_backward ? makes_input_grad(kind) : forwards(kind),
        kind == ActionKind::forward_only || (to_backward ? makes_input_grad(kind) : makes_weight_grad(kind)));
  }
  table.slots = slots.count();
  return table;
}

ReceiveSlots color_receives(std::span<const Action> actions, const ScheduleShape& shape, ActionKind receive) {
  base::check(is_receive(receive), "only receives have receive slots");
  const bool forward = receive == ActionKind::recv_forward;
  ReceiveSlots table;
  table.slot_of_microbatch.assign(static_cast<std::size_t>(shape.virtual_stages),
                                  std::vector<int>(static_cast<std::size_t>(shape.microbatches), -1));
  Slots slots;
  for (const Action& action : actions) {
    const auto chunk = static_cast<std::size_t>(action.chunk / shape.stages);
    color(slots, table.slot_of_microbatch.at(chunk).at(static_cast<std::size_t>(action.microbatch)),
          action.kind == receive, forward ? forwards(action.kind) : makes_input_grad(action.kind));
  }
  table.slots = slots.count();
  return table;
}

}  // namespace trainerd::parallel
