#include "parallel/schedule/transfers.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "parallel/schedule/timeline.h"

namespace trainerd::parallel {
namespace {

bool goes_forward(const Action& compute) {
  return compute.kind == ActionKind::forward || compute.kind == ActionKind::forward_only;
}

bool goes_backward(const Action& compute) {
  return compute.kind == ActionKind::backward || compute.kind == ActionKind::backward_input;
}

/// The receive that must come before a computation; none if its input is from this rank.
std::optional<Action> receive_before(const ScheduleShape& shape, const Action& a) {
  if (goes_forward(a) && a.chunk > 0 && !shape.stays_on_rank(a.chunk - 1))
    return Action{ActionKind::recv_forward, a.chunk, a.microbatch, shape.rank_of(a.chunk - 1)};
  if (goes_backward(a) && a.chunk + 1 < shape.chunks() && !shape.stays_on_rank(a.chunk))
    return Action{ActionKind::recv_backward, a.chunk, a.microbatch, shape.rank_of(a.chunk + 1)};
  return std::nullopt;
}

/// The send of a computation's result; none if no other rank needs it.
std::optional<Action> send_after(const ScheduleShape& shape, const Action& a) {
  if (goes_forward(a) && a.chunk + 1 < shape.chunks() && !shape.stays_on_rank(a.chunk))
    return Action{ActionKind::send_forward, a.chunk, a.microbatch, shape.rank_of(a.chunk + 1)};
  if (goes_backward(a) && a.chunk > 0 && !shape.stays_on_rank(a.chunk - 1))
    return Action{ActionKind::send_backward, a.chunk, a.microbatch, shape.rank_of(a.chunk - 1)};
  return std::nullopt;
}

/// The receive that matches `send`.
Action receive_of(const Action& send, int sender) {
  if (send.kind == ActionKind::send_forward)
    return {ActionKind::recv_forward, send.chunk + 1, send.microbatch, sender};
  return {ActionKind::recv_backward, send.chunk - 1, send.microbatch, sender};
}

/// Posts each receive right after the computation that used the last message, so before weight gradients that
/// precede its own use, if early receives are allowed. With one chunk per rank, 1F1B's pairs (send forward
/// and receive backward, send backward and receive forward) then meet in one group on both sides. ZB-H1's do
/// too.
std::vector<Action> received_in_pairs(const ScheduleShape& shape, const std::vector<Action>& order) {
  std::vector<Action> list;
  for (const Action& action : order) {
    if (const auto receive = receive_before(shape, action)) {
      auto at = list.end();
      while (shape.early_receives && at != list.begin() && std::prev(at)->kind == ActionKind::backward_weight)
        --at;
      list.insert(at, *receive);
    }
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

/// Buffers, by direction: forward and backward.
using Places = std::array<int, 2>;
std::size_t direction(bool forward) { return forward ? 0 : 1; }

/// Merges a rank's messages, in order, into its computations: each one before the first computation that
/// starts when it is ready. Receives go earlier while one of `places` is free. `most` is the maximum number
/// of places in use.
std::vector<Action> merged(const ScheduleShape& shape, const std::vector<TimedAction>& computed,
                           const std::vector<Message>& messages, const Places& places, Places& most) {
  std::vector<Action> list;
  Places taken{};
  most = {};
  auto next = messages.begin();
  const auto may_wait_here = [&] {
    const ActionKind kind = next->action.kind;
    const std::size_t d = direction(kind == ActionKind::recv_forward);
    return is_receive(kind) && taken[d] < places[d];
  };
  for (const TimedAction& timed : computed) {
    for (;
         !timed.action.joins && next != messages.end() && (next->ready_at <= timed.start || may_wait_here());
         ++next) {
      list.push_back(next->action);
      if (!is_receive(next->action.kind)) continue;
      const std::size_t d = direction(next->action.kind == ActionKind::recv_forward);
      most[d] = std::max(most[d], ++taken[d]);
    }
    list.push_back(timed.action);
    if (receive_before(shape, timed.action)) --taken[direction(goes_forward(timed.action))];
  }
  for (; next != messages.end(); ++next) list.push_back(next->action);
  return list;
}

/// With several chunks per rank, messages go around (or forth and back), so a rank that sends and waits could
/// wait for itself. Here the transfers of every rank are in the order (ready_at, sender), which orders all
/// messages. Both ends of the first unfinished message are free to transfer it, so none ever blocks, even if
/// every send waits for its receiver and every rank for each transfer. Times assume computations of unit cost
/// and messages of half a unit. Any message time above 0 and below a computation gives the order in which
/// ranks need them when messages do take time. One after the other, they cost at most 0.007 of a step in
/// table 5 of the zero-bubble paper (1/8 to 1/2 of a unit), but 0.07 at 0 and 0.08 at 1.
std::vector<std::vector<Action>> received_in_order(const ScheduleShape& shape,
                                                   const std::vector<std::vector<Action>>& orders) {
  const Timeline unit = timeline(orders, {.transfer = 0.5});
  std::vector<std::vector<Message>> messages(orders.size());
  for (std::size_t rank = 0; rank < orders.size(); ++rank)
    for (const TimedAction& timed : unit.ranks[rank])
      if (const auto send = send_after(shape, timed.action)) {
        const int sender = static_cast<int>(rank);
        messages[rank].push_back({timed.end, sender, *send});
        messages[static_cast<std::size_t>(send->peer)].push_back(
            {timed.end, sender, receive_of(*send, sender)});
      }
  std::vector<std::vector<Action>> lists;
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    // Computations that take turns end at one time: their messages stay in the order of the list.
    std::stable_sort(messages[rank].begin(), messages[rank].end(), [](const Message& a, const Message& b) {
      return std::tie(a.ready_at, a.sender) < std::tie(b.ready_at, b.sender);
    });
    Places places{}, most{};
    std::vector<Action> list = merged(shape, unit.ranks[rank], messages[rank], places, most);
    if (!shape.early_receives) {
      lists.push_back(std::move(list));
      continue;
    }
    // At most two, and at most one per receiving chunk.
    for (const bool forward : {true, false}) {
      int receiving = 0;
      for (int i = 0; i < shape.virtual_stages; ++i)
        if (receive_before(shape, {forward ? ActionKind::forward : ActionKind::backward,
                                   shape.chunk_of(static_cast<int>(rank), i)}))
          ++receiving;
      places[direction(forward)] = std::max(most[direction(forward)], std::min(2, receiving));
    }
    lists.push_back(merged(shape, unit.ranks[rank], messages[rank], places, most));
  }
  return lists;
}

}  // namespace

std::vector<std::vector<Action>> with_transfers(const ScheduleShape& shape,
                                                const std::vector<std::vector<Action>>& orders) {
  if (shape.several_chunks()) return received_in_order(shape, orders);
  std::vector<std::vector<Action>> lists;
  for (const std::vector<Action>& order : orders) lists.push_back(received_in_pairs(shape, order));
  return lists;
}

}  // namespace trainerd::parallel
