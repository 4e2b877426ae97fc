#include "parallel/schedule/transfers.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "parallel/schedule/timeline.h"

namespace trainerd::parallel {
namespace {

bool goes_forward(const Action& compute) {
  return compute.kind == ActionKind::forward || compute.kind == ActionKind::forward_only;
}

bool goes_backward(const Action& compute) {
  return compute.kind == ActionKind::backward || compute.kind == ActionKind::backward_input;
}

/// What must have arrived before a computation, if it comes from another rank.
std::optional<Action> receive_before(const ScheduleShape& shape, const Action& a) {
  if (shape.stages == 1) return std::nullopt;
  if (goes_forward(a) && a.chunk > 0)
    return Action{ActionKind::recv_forward, a.chunk, a.microbatch, (a.chunk - 1) % shape.stages};
  if (goes_backward(a) && a.chunk + 1 < shape.chunks())
    return Action{ActionKind::recv_backward, a.chunk, a.microbatch, (a.chunk + 1) % shape.stages};
  return std::nullopt;
}

/// What a computation makes for another rank.
std::optional<Action> send_after(const ScheduleShape& shape, const Action& a) {
  if (shape.stages == 1) return std::nullopt;
  if (goes_forward(a) && a.chunk + 1 < shape.chunks())
    return Action{ActionKind::send_forward, a.chunk, a.microbatch, (a.chunk + 1) % shape.stages};
  if (goes_backward(a) && a.chunk > 0)
    return Action{ActionKind::send_backward, a.chunk, a.microbatch, (a.chunk - 1) % shape.stages};
  return std::nullopt;
}

/// The receive that takes what `send` sends.
Action receive_of(const Action& send, int sender) {
  if (send.kind == ActionKind::send_forward)
    return {ActionKind::recv_forward, send.chunk + 1, send.microbatch, sender};
  return {ActionKind::recv_backward, send.chunk - 1, send.microbatch, sender};
}

/// Receives right before their use. One chunk a rank makes a chain of ranks, on which 1F1B's pairs (send
/// forward and receive backward, send backward and receive forward) meet in one group on both sides.
std::vector<Action> received_when_used(const ScheduleShape& shape, const std::vector<Action>& order) {
  std::vector<Action> list;
  for (const Action& action : order) {
    if (const auto receive = receive_before(shape, action)) list.push_back(*receive);
    list.push_back(action);
    if (const auto send = send_after(shape, action)) list.push_back(*send);
  }
  return list;
}

struct Message {
  double ready_at;  ///< end of the computation that made it
  int sender;
  Action action;  ///< its send or its receive
};

/// Receives where they are due at unit costs. Several chunks a rank make a ring, where a rank that sends and
/// waits may wait for itself. Here the transfers of every rank are in the order (ready_at, sender), which is
/// one order of all messages: the first message that is not yet through has both its ends free to carry it,
/// so none is ever stuck, even if every send waits for its receiver. And at unit costs no receive waits for
/// what the rank does not need yet.
std::vector<std::vector<Action>> received_when_due(const ScheduleShape& shape,
                                                   const std::vector<std::vector<Action>>& orders) {
  const Timeline unit = timeline(orders, {});
  std::vector<std::vector<Message>> messages(orders.size());
  for (std::size_t rank = 0; rank < orders.size(); ++rank)
    for (const TimedAction& timed : unit.ranks[rank])
      if (const auto send = send_after(shape, timed.action)) {
        const int sender = static_cast<int>(rank);
        messages[rank].push_back({timed.end, sender, *send});
        messages[static_cast<std::size_t>(send->peer)].push_back(
            {timed.end, sender, receive_of(*send, sender)});
      }
  std::vector<std::vector<Action>> lists(orders.size());
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    std::vector<Message>& due = messages[rank];
    std::sort(due.begin(), due.end(), [](const Message& a, const Message& b) {
      return std::tie(a.ready_at, a.sender) < std::tie(b.ready_at, b.sender);
    });
    auto next = due.begin();
    for (const TimedAction& timed : unit.ranks[rank]) {
      for (; next != due.end() && next->ready_at <= timed.start; ++next) lists[rank].push_back(next->action);
      lists[rank].push_back(timed.action);
    }
    for (; next != due.end(); ++next) lists[rank].push_back(next->action);
  }
  return lists;
}

}  // namespace

std::vector<std::vector<Action>> with_transfers(const ScheduleShape& shape,
                                                const std::vector<std::vector<Action>>& orders) {
  if (shape.virtual_stages > 1 && shape.stages > 1) return received_when_due(shape, orders);
  std::vector<std::vector<Action>> lists;
  for (const std::vector<Action>& order : orders) lists.push_back(received_when_used(shape, order));
  return lists;
}

}  // namespace trainerd::parallel
