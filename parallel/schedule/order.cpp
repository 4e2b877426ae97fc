#include "parallel/schedule/order.h"

#include <algorithm>

#include "parallel/schedule/v_order.h"

namespace trainerd::parallel {
namespace {

enum class Direction { forward, backward };

struct Item {
  int chunk;
  int microbatch;
};

/// Every (chunk, microbatch) of a rank, in the order of one direction. Chunks take turns on each group of
/// microbatches (Narayanan et al., SC21, section 2.2.2, where a group has as many as there are stages).
std::vector<Item> items(const ScheduleShape& shape, int rank, Direction direction) {
  std::vector<Item> list;
  int first = 0;
  for (const int size : microbatch_groups(shape)) {
    for (int i = 0; i < shape.virtual_stages; ++i) {
      const int turn = direction == Direction::forward ? i : shape.virtual_stages - 1 - i;
      for (int m = first; m < first + size; ++m) list.push_back({shape.chunk_of(rank, turn), m});
    }
    first += size;
  }
  return list;
}

/// Number of forwards before the first pair of one forward and one backward.
int warmup(const ScheduleShape& shape, int rank) {
  const int all = shape.microbatches * shape.virtual_stages, behind = shape.stages - rank - 1;
  if (shape.kind == ScheduleKind::gpipe) return all;
  // Narayanan et al., SC21: two per rank behind, because messages travel in both directions, plus all turns
  // of the first group but the last.
  if (shape.virtual_stages > 1)
    return std::min(all, 2 * behind + (shape.virtual_stages - 1) * microbatch_groups(shape).front());
  // With this few microbatches all fit in the memory of ZB-H1. Two forwards per rank behind hide messages
  // that take up to half a forward, and delay no backward. The paper's scheduler (Qi et al., 2024, section 3)
  // does all forwards first if messages take long.
  if (shape.kind == ScheduleKind::zb_h1 && shape.microbatches <= shape.stages)
    return std::min(all, 2 * behind);
  return std::min(all, behind);  // PipeDream-flush
}

}  // namespace

std::vector<std::vector<Action>> compute_orders(const ScheduleShape& shape) {
  if (goes_back(shape.kind) && shape.several_chunks()) return v_orders(shape);
  std::vector<std::vector<Action>> orders;
  for (int rank = 0; rank < shape.stages; ++rank) orders.push_back(compute_order(shape, rank));
  return orders;
}

std::vector<Action> compute_order(const ScheduleShape& shape, int pipeline_rank) {
  if (goes_back(shape.kind) && shape.several_chunks())
    return v_orders(shape)[static_cast<std::size_t>(pipeline_rank)];
  const std::vector<Item> forwards = items(shape, pipeline_rank, Direction::forward);
  std::vector<Action> list;
  const auto add = [&list](ActionKind kind, const Item& item) {
    list.push_back({kind, item.chunk, item.microbatch});
  };
  if (shape.pass == Pass::evaluate) {
    for (const Item& item : forwards) add(ActionKind::forward_only, item);
    return list;
  }
  const std::vector<Item> backwards = items(shape, pipeline_rank, Direction::backward);
  const std::size_t all = forwards.size(), warm = static_cast<std::size_t>(warmup(shape, pipeline_rank));
  for (std::size_t i = 0; i < warm; ++i) add(ActionKind::forward, forwards[i]);
  const auto add_forward_of_pair = [&](std::size_t i) {
    if (warm + i < all) add(ActionKind::forward, forwards[warm + i]);
  };
  if (!splits_backward(shape.kind)) {
    for (std::size_t i = 0; i < all; ++i) {
      add_forward_of_pair(i);
      add(ActionKind::backward, backwards[i]);
    }
    return list;
  }
  // ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2024): the warm-up of 1F1B (or a longer one if memory
  // permits), and rank r delays weight gradients by r microbatches. So every rank holds as many microbatches
  // as the first rank of 1F1B, `stages`, and no more. Ranks that wait longest at the end have the most weight
  // gradients left to fill that time.
  const std::size_t late = std::min(all, static_cast<std::size_t>(pipeline_rank));
  for (std::size_t i = 0; i < all; ++i) {
    add_forward_of_pair(i);
    add(ActionKind::backward_input, backwards[i]);
    if (i >= late) add(ActionKind::backward_weight, backwards[i - late]);
  }
  for (std::size_t i = all - late; i < all; ++i) add(ActionKind::backward_weight, backwards[i]);
  return list;
}

}  // namespace trainerd::parallel
