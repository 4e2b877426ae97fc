#include "parallel/schedule/slots.h"

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

bool begins(ActionKind kind, Lifetime lifetime) {
  if (lifetime == Lifetime::backward_to_weight) return kind == ActionKind::backward;
  return kind == ActionKind::forward || kind == ActionKind::forward_only;
}

bool ends(ActionKind kind) { return kind == ActionKind::backward || kind == ActionKind::forward_only; }

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
  SlotTable table;
  table.slot_of_microbatch.assign(static_cast<std::size_t>(microbatches), -1);
  std::vector<bool> busy;
  for (const Action& action : actions) {
    if (action.chunk != chunk) continue;
    int& slot = table.slot_of_microbatch.at(static_cast<std::size_t>(action.microbatch));
    if (begins(action.kind, lifetime)) {
      base::check(slot < 0, "a microbatch begins once in an action list");
      slot = 0;
      while (slot < static_cast<int>(busy.size()) && busy[static_cast<std::size_t>(slot)]) ++slot;
      if (slot == static_cast<int>(busy.size())) busy.push_back(false);
      busy[static_cast<std::size_t>(slot)] = true;
    }
    if (ends(action.kind) && slot >= 0) busy[static_cast<std::size_t>(slot)] = false;
  }
  table.slots = static_cast<int>(busy.size());
  return table;
}

}  // namespace trainerd::parallel
