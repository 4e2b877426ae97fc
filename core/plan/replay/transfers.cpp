#include <algorithm>

#include "core/plan/replay/simulation.h"

namespace trainerd::core::plan {

using base::TimeLedger;
using parallel::Action;
using parallel::ActionKind;

std::size_t ReplaySimulation::message_of(const Action& a, int step) const {
  const bool forward = forwards(a.kind);
  const int chunk = parallel::is_receive(a.kind) ? a.chunk : a.chunk + (forward ? 1 : -1);
  const std::size_t chunks = static_cast<std::size_t>(in_.schedule.chunks());
  const std::size_t direction = static_cast<std::size_t>(step) * 2 + (forward ? 0 : 1);
  return (direction * chunks + static_cast<std::size_t>(chunk)) *
             static_cast<std::size_t>(in_.schedule.microbatches) +
         static_cast<std::size_t>(a.microbatch);
}

void ReplaySimulation::post(Rank& rank, std::span<const Action> group) {
  const std::int64_t index = std::ssize(rank.flights);
  Flight& flight = rank.flights.emplace_back();
  for (const Action& a : group) {
    const bool sends = parallel::is_send(a.kind);
    flight.messages.push_back({message_of(a, rank.step), sends, &a});
    if (sends) rank.sends[lane(forwards(a.kind), a.chunk)].push_back(index);
    else rank.recvs[place(a, forwards(a.kind))] = index;
    if (sends && !in_.messages_in_order) come(rank, flight.messages.back());
  }
  if (in_.messages_in_order) exchange(rank);
}

void ReplaySimulation::come(const Rank& rank, const Flight::Message& message) {
  ReplayMessage& m = messages_[message.id];
  (message.sends ? m.sent : m.received) = clock_;
  if (in_.messages_in_order && (m.sent < 0 || m.received < 0)) return;
  send(message.id, message.sends ? rank.index : message.action->peer,
       message.sends ? message.action->peer : rank.index);
}

void ReplaySimulation::exchange(Rank& rank) {
  for (; rank.through < rank.flights.size(); ++rank.through) {
    Flight& flight = rank.flights[rank.through];
    if (!std::exchange(flight.begun, true))
      for (const Flight::Message& message : flight.messages) come(rank, message);
    for (const Flight::Message& message : flight.messages)
      if (messages_[message.id].end < 0) return;
  }
}

bool ReplaySimulation::land(Rank& rank, std::int64_t index) {
  if (index < 0) return true;
  double end = 0;
  for (const Flight::Message& message : rank.flights[static_cast<std::size_t>(index)].messages) {
    if (message.sends && !in_.messages_in_order) continue;
    const ReplayMessage& m = messages_[message.id];
    if (m.end < 0) return false;
    end = std::max(end, m.end);
  }
  for (Flight::Message& message : rank.flights[static_cast<std::size_t>(index)].messages) {
    const ReplayMessage& m = messages_[message.id];
    const double start = std::max(m.sent, m.received);
    if (!message.sends)
      emit(rank, ReplaySlice::Kind::message, "message", std::exchange(message.action, nullptr), start,
           m.end - start);
  }
  if (end > rank.now) {
    if (options_.observe)
      emit(rank, ReplaySlice::Kind::stall, info(base::LedgerPart::bubble).name, nullptr, rank.now,
           end - rank.now);
    rank.ledger[base::LedgerPart::bubble] += end - rank.now;
    rank.beside = std::max(0.0, rank.beside - (end - rank.now));
    rank.now = end;
  }
  return true;
}

bool ReplaySimulation::carry(Rank& rank, const TimedEvent& e) {
  if (!rank.carries) {
    const TransferCost& cost = rank.timed->costs[static_cast<std::size_t>(e.collective)];
    const double start = std::max(rank.now, rank.host + e.host);
    rank.host += e.host;
    // No other transfer uses these links, and the stopped rank starts none.
    if (rank.under_way == 0 && !e.met) {
      spend(rank, start + cost.seconds() - rank.now, e.part);
      return true;
    }
    rank.carries = true, rank.carried = -1;
    const PortUse use{PortUse::Way::both, rank.index, &cost};
    begin({.kind = Owner::Kind::stop, .rank = rank.index}, start - clock_ + cost.latency, cost.bandwidth,
          {&use, 1});
    return false;
  }
  if (rank.carried < 0) return false;
  rank.carries = false;
  rank.beside = std::max(0.0, rank.beside - (rank.carried - rank.now));
  spend(rank, rank.carried - rank.now, e.part);
  return true;
}

void ReplaySimulation::issue(Rank& rank, const TimedEvent& e) {
  Group& group = rank.groups[static_cast<std::size_t>(e.group)];
  Collective& issued =
      group.issued.emplace_back(Collective{.index = e.collective, .action = rank.action, .step = rank.step});
  if (e.after >= 0) {
    const std::int64_t index =
        std::ssize(rank.groups[static_cast<std::size_t>(e.after)].issued) - 1 - e.behind;
    if (index >= 0) issued.after = e.after, issued.after_index = static_cast<std::size_t>(index);
  }
  ++rank.under_way;
  if (!group.info->joins_stages) {
    if (e.collective >= 0)
      if (const TransferCost& cost = rank.timed->costs[static_cast<std::size_t>(e.collective)];
          cost.uses(Port::nvlink) && !cost.uses(Port::network))
        rank.beside += cost.seconds();
    if (group.ended + 1 == group.issued.size()) go_on(rank, e.group);
    return;
  }
  Meeting& meeting = meetings_[group.info->group][group.issued.size() - 1];
  meeting.came.push_back(
      {PortUse::Way::both, rank.index, &rank.timed->costs[static_cast<std::size_t>(e.collective)]});
  if (std::ssize(meeting.came) < members_[group.info->group]) return;
  const auto by_seconds = [](const PortUse& a, const PortUse& b) {
    return a.cost->seconds() < b.cost->seconds();
  };
  const TransferCost& longest = *std::max_element(meeting.came.begin(), meeting.came.end(), by_seconds)->cost;
  begin({.kind = Owner::Kind::meeting, .meeting = &meeting}, longest.latency, longest.bandwidth,
        meeting.came);
}

void ReplaySimulation::go_on(Rank& rank, int g) {
  Group& group = rank.groups[static_cast<std::size_t>(g)];
  if (group.ended == group.issued.size()) return;
  Collective& next = group.issued[group.ended];
  if (next.begun ||
      (next.after >= 0 && rank.groups[static_cast<std::size_t>(next.after)].issued[next.after_index].end < 0))
    return;
  next.begun = true;
  next.start = clock_;
  static constexpr TransferCost kNothing;
  const TransferCost& cost =
      next.index < 0 ? kNothing : rank.timed->costs[static_cast<std::size_t>(next.index)];
  const PortUse use{PortUse::Way::both, rank.index, &cost};
  begin({.kind = Owner::Kind::group, .rank = rank.index, .group = g}, cost.latency, cost.bandwidth,
        {&use, 1});
}

void ReplaySimulation::send(std::size_t id, int from, int to) {
  const TransferCost& cost =
      message_costs_[static_cast<std::size_t>(from)][is_next(in_.schedule, from, to) ? 0 : 1];
  ++ranks_[static_cast<std::size_t>(from)].under_way, ++ranks_[static_cast<std::size_t>(to)].under_way;
  const std::array uses{PortUse{PortUse::Way::out, from, &cost}, PortUse{PortUse::Way::in, to, &cost}};
  begin({.kind = Owner::Kind::message, .rank = from, .peer = to, .message = id}, cost.latency, cost.bandwidth,
        uses);
}

bool ReplaySimulation::wait(Rank& rank, const TimedEvent& e) {
  const Group& group = rank.groups[static_cast<std::size_t>(e.group)];
  const std::int64_t index = std::ssize(group.issued) - 1 - e.behind;
  if (index < 0) return true;
  const auto i = static_cast<std::size_t>(index);
  const double end = group.info->joins_stages ? meetings_[group.info->group][i].end : group.issued[i].end;
  if (end < 0) return false;
  if (end <= rank.now) return true;
  rank.beside = std::max(0.0, rank.beside - (end - rank.now));
  spend(rank, end - rank.now, group.info->wait);
  return true;
}

bool ReplaySimulation::land_for(Rank& rank, const Action& a) {
  if (a.kind == ActionKind::reduce_grads || a.kind == ActionKind::backward_weight) return true;
  const bool forward = a.kind == ActionKind::forward || a.kind == ActionKind::forward_only;
  const std::vector<std::int64_t>& sends = rank.sends[lane(forward, a.chunk)];
  if (sends.size() >= 2 && !land(rank, sends[sends.size() - 2])) return false;
  return land(rank, rank.recvs[place(a, forward)]);
}

void ReplaySimulation::begin(const Owner& owner, double latency, double bandwidth,
                             std::span<const PortUse> uses) {
  const std::size_t id = links_.start(clock_, latency, bandwidth, uses);
  if (owners_.size() <= id) owners_.resize(id + 1);
  owners_[id] = owner;
}

void ReplaySimulation::finish(const Owner& o) {
  const auto ended = [&](int r) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    --rank.under_way;
    wake(rank);
  };
  Rank& rank = ranks_[static_cast<std::size_t>(o.rank)];
  switch (o.kind) {
    case Owner::Kind::stop: rank.carried = clock_, wake(rank); return;
    case Owner::Kind::group: {
      Group& group = rank.groups[static_cast<std::size_t>(o.group)];
      Collective& c = group.issued[group.ended++];
      c.end = clock_;
      emit(rank, c.step, ReplaySlice::Kind::collective, group.info->name, c.action, c.start, c.end - c.start);
      ended(o.rank);
      go_on(rank, o.group);
      for (std::size_t g = 0; g < rank.groups.size(); ++g)
        if (const Group& other = rank.groups[g];
            other.ended < other.issued.size() && other.issued[other.ended].after == o.group)
          go_on(rank, static_cast<int>(g));
      return;
    }
    case Owner::Kind::meeting: {
      o.meeting->end = clock_;
      for (const PortUse& use : o.meeting->came) ended(use.rank);
      return;
    }
    case Owner::Kind::message: {
      messages_[o.message].end = clock_;
      if (in_.messages_in_order) exchange(rank), exchange(ranks_[static_cast<std::size_t>(o.peer)]);
      ended(o.rank), ended(o.peer);
      return;
    }
  }
}

}  // namespace trainerd::core::plan
