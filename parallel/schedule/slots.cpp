#include "parallel/schedule/slots.h"

#include <algorithm>

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

/// `begins` and `ends` tell of an action kind whether it is the first or the last of a lifetime; one may be
/// both.
template <class Begins, class Ends>
SlotTable color(std::span<const Action> actions, int chunk, int microbatches, Begins begins, Ends ends) {
  SlotTable table;
  table.slot_of_microbatch.assign(static_cast<std::size_t>(microbatches), -1);
  std::vector<bool> busy;
  for (const Action& action : actions) {
    if (action.chunk != chunk) continue;
    int& slot = table.slot_of_microbatch.at(static_cast<std::size_t>(action.microbatch));
    if (begins(action.kind)) {
      base::check(slot < 0, "a microbatch begins once in an action list");
      const auto free = std::find(busy.begin(), busy.end(), false);
      slot = static_cast<int>(free - busy.begin());
      if (free == busy.end()) busy.push_back(false);
      busy[static_cast<std::size_t>(slot)] = true;
    }
    if (ends(action.kind) && slot >= 0) busy[static_cast<std::size_t>(slot)] = false;
  }
  table.slots = static_cast<int>(busy.size());
  return table;
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
  return color(
      actions, chunk, microbatches,
      [=](ActionKind kind) { return from_backward ? makes_input_grad(kind) : forwards(kind); },
      [=](ActionKind kind) {
        return kind == ActionKind::forward_only ||
               (to_backward ? makes_input_grad(kind) : makes_weight_grad(kind));
      });
}

SlotTable color_receives(std::span<const Action> actions, int chunk, int microbatches, ActionKind receive) {
  base::check(is_receive(receive), "only receives have receive slots");
  const bool forward = receive == ActionKind::recv_forward;
  return color(
      actions, chunk, microbatches, [=](ActionKind kind) { return kind == receive; },
      [=](ActionKind kind) { return forward ? forwards(kind) : makes_input_grad(kind); });
}

}  // namespace trainerd::parallel
