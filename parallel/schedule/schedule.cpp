#include "parallel/schedule/schedule.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "parallel/schedule/order.h"
#include "parallel/schedule/transfers.h"

namespace trainerd::parallel {
namespace {

bool is_transfer(const Action& action) { return is_send(action.kind) || is_receive(action.kind); }

bool finishes_gradients(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

/// Joins neighbouring transfers of ranks with one chunk each: a rank's send then pairs with its neighbour's
/// send. In a ring each would wait for a whole round.
void join_neighbours(std::vector<Action>& list) {
  for (std::size_t i = 1; i < list.size(); ++i)
    list[i].joins = is_transfer(list[i - 1]) && is_transfer(list[i]);
}

/// Puts a chunk's reduction after its last microbatch and after the send of that backward, because the
/// previous rank waits for the send.
std::vector<Action> with_reductions(const ScheduleShape& shape, const std::vector<Action>& actions) {
  std::vector<Action> list;
  for (auto next = actions.begin(); next != actions.end();) {
    const Action last = *next++;
    list.push_back(last);
    if (!finishes_gradients(last.kind) || last.microbatch + 1 != shape.microbatches) continue;
    const auto group_end = std::find_if_not(next, actions.end(), is_transfer);
    const auto send = std::find_if(next, group_end, [&](const Action& action) {
      return action.kind == ActionKind::send_backward && action.chunk == last.chunk;
    });
    if (send != group_end)
      while (next <= send) list.push_back(*next++);
    list.push_back({ActionKind::reduce_grads, last.chunk, last.microbatch});
  }
  return list;
}

/// Adds everything else that ranks do to their orders of computations.
std::vector<std::vector<Action>> completed(const ScheduleShape& shape,
                                           std::vector<std::vector<Action>> lists) {
  lists = with_transfers(shape, lists);
  if (shape.pass == Pass::train)
    for (std::vector<Action>& list : lists) list = with_reductions(shape, list);
  if (!shape.several_chunks())
    for (std::vector<Action>& list : lists) join_neighbours(list);
  return lists;
}

void require_possible(const ScheduleShape& shape) {
  if (const std::string problem = schedule_problem(shape); !problem.empty()) throw base::spec_error(problem);
}

}  // namespace

const char* to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return "forward";
    case ActionKind::forward_only: return "forward_only";
    case ActionKind::backward: return "backward";
    case ActionKind::backward_input: return "backward_input";
    case ActionKind::backward_weight: return "backward_weight";
    case ActionKind::send_forward: return "send_forward";
    case ActionKind::recv_forward: return "recv_forward";
    case ActionKind::send_backward: return "send_backward";
    case ActionKind::recv_backward: return "recv_backward";
    case ActionKind::reduce_grads: return "reduce_grads";
  }
  return "?";
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}
bool is_receive(ActionKind kind) {
  return kind == ActionKind::recv_forward || kind == ActionKind::recv_backward;
}

bool take_turns(const Action& before, const Action& action) {
  return action.joins && !is_transfer(before) && !is_transfer(action);
}

std::string describe(const Action& action) {
  return std::string(to_string(action.kind)) + " of chunk " + std::to_string(action.chunk) + ", microbatch " +
         std::to_string(action.microbatch);
}

std::size_t group_size(std::span<const Action> rest) {
  std::size_t size = 1;
  while (size < rest.size() && rest[size].joins) ++size;
  return size;
}

std::vector<std::vector<Action>> make_schedules(const ScheduleShape& shape) {
  require_possible(shape);
  return completed(shape, compute_orders(shape));
}

std::vector<Action> make_schedule(const ScheduleShape& shape, int pipeline_rank) {
  require_possible(shape);
  base::check(pipeline_rank >= 0 && pipeline_rank < shape.stages,
              "a pipeline rank is below the number of stages");
  // With one chunk per rank a rank's transfers follow the order of its own computations. With several they
  // depend on all ranks.
  if (!shape.several_chunks()) return completed(shape, {compute_order(shape, pipeline_rank)}).front();
  return make_schedules(shape)[static_cast<std::size_t>(pipeline_rank)];
}

}  // namespace trainerd::parallel
