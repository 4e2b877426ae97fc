#include "parallel/schedule/slots.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <vector>

#include "kernels/base/error.h"
#include "parallel/schedule/order.h"

namespace trainerd::parallel {
namespace {

bool forwards(ActionKind kind) { return kind == ActionKind::forward || kind == ActionKind::forward_only; }
bool makes_input_grad(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}
bool makes_weight_grad(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

/// Numbered slots; gives out the lowest free one.
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

/// `begins` and `ends` return whether an action of this kind is the first or the last of a lifetime. One
/// action may be both.
template <class Begins, class Ends>
SlotTable color(std::span<const Action> actions, const ScheduleShape& shape,
                std::span<const int> pool_of_chunk, const Begins& begins, const Ends& ends) {
  SlotTable table;
  table.slot_of_microbatch.assign(pool_of_chunk.size(),
                                  std::vector<int>(static_cast<std::size_t>(shape.microbatches), -1));
  std::vector<Slots> pools(
      1 + static_cast<std::size_t>(*std::max_element(pool_of_chunk.begin(), pool_of_chunk.end())));
  for (const Action& action : actions) {
    const auto chunk = static_cast<std::size_t>(shape.place_of(action.chunk));
    int& slot = table.slot_of_microbatch.at(chunk).at(static_cast<std::size_t>(action.microbatch));
    Slots& pool = pools[static_cast<std::size_t>(pool_of_chunk[chunk])];
    if (begins(action.kind)) {
      base::check(slot < 0, "a microbatch begins once in an action list");
      slot = pool.take();
    }
    if (ends(action.kind) && slot >= 0) pool.release(slot);
  }
  for (const Slots& pool : pools) table.slots.push_back(pool.count());
  return table;
}

/// Maximum number of microbatches between forward and weight gradient at once, over the rank's chunks for
/// which `counts` is true.
template <class Counts>
int most_alive(std::span<const Action> computations, const ScheduleShape& shape, const Counts& counts) {
  int alive = 0, most = 0;
  for (const Action& action : computations) {
    if (!counts(static_cast<std::size_t>(shape.place_of(action.chunk)))) continue;
    if (forwards(action.kind)) most = std::max(most, ++alive);
    if (makes_weight_grad(action.kind)) --alive;
  }
  return most;
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

SlotTable color_slots(std::span<const Action> actions, const ScheduleShape& shape,
                      std::span<const int> pool_of_chunk, Lifetime lifetime) {
  const bool from_backward = lifetime == Lifetime::backward_to_weight;
  const bool to_backward = lifetime == Lifetime::forward_to_backward;
  return color(
      actions, shape, pool_of_chunk,
      [&](ActionKind kind) { return from_backward ? makes_input_grad(kind) : forwards(kind); },
      [&](ActionKind kind) {
        return kind == ActionKind::forward_only ||
               (to_backward ? makes_input_grad(kind) : makes_weight_grad(kind));
      });
}

SlotTable color_receives(std::span<const Action> actions, const ScheduleShape& shape, ActionKind receive) {
  base::check(is_receive(receive), "only receives have receive slots");
  const bool forward = receive == ActionKind::recv_forward;
  const std::vector<int> one_pool(static_cast<std::size_t>(shape.virtual_stages), 0);
  return color(
      actions, shape, one_pool, [&](ActionKind kind) { return kind == receive; },
      [&](ActionKind kind) { return forward ? forwards(kind) : makes_input_grad(kind); });
}

std::vector<int> slot_pools(const ScheduleShape& shape, int pipeline_rank,
                            std::span<const std::int64_t> sizes) {
  std::vector<int> pool_of_chunk(sizes.size(), 0);
  const std::set<std::int64_t, std::greater<>> distinct(sizes.begin(), sizes.end());
  if (distinct.size() == 1) return pool_of_chunk;
  const std::vector<Action> computations = compute_order(shape, pipeline_rank);
  int pool = -1, slots = 0;
  std::int64_t largest = 0;  // size of the pool's largest chunk
  for (const std::int64_t size : distinct) {
    const auto alone = [&](std::size_t chunk) { return sizes[chunk] == size; };
    const auto joined = [&](std::size_t chunk) {
      return alone(chunk) || (sizes[chunk] > size && pool_of_chunk[chunk] == pool);
    };
    const int slots_alone = most_alive(computations, shape, alone),
              slots_joined = most_alive(computations, shape, joined);
    if (pool >= 0 && slots_joined * largest <= slots * largest + slots_alone * size) {
      slots = slots_joined;
    } else {
      ++pool, slots = slots_alone, largest = size;
    }
    for (std::size_t chunk = 0; chunk < sizes.size(); ++chunk)
      if (alone(chunk)) pool_of_chunk[chunk] = pool;
  }
  return pool_of_chunk;
}

}  // namespace trainerd::parallel
