#include "core/plan/replay.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <queue>
#include <span>
#include <string>
#include <utility>

#include "core/plan/link_sharing.h"
#include "core/plan/timed_rank.h"
#include "kernels/base/error.h"

namespace trainerd::core {
namespace {

using io::TimeLedger;
using parallel::Action;
using parallel::ActionKind;
using Part = double TimeLedger::*;

constexpr int kSteps = 2;

const char* name_of(Part part) {
  TimeLedger one;
  one.*part = 1;
  for (const io::LedgerPart& p : io::parts(one))
    if (p.seconds > 0) return p.name;
  return "";
}

/// A message's costs by its sender: to the rank after it, and to the one before.
using MessageCosts = std::vector<std::array<TransferCost, 2>>;
bool is_next(const parallel::ScheduleShape& shape, int from, int to) { return (from + 1) % shape.stages == to; }

/// Messages that go out together.
struct Flight {
  struct Message {
    std::size_t id;
    bool sends;
    const Action* action;  ///< none: told of already
  };
  std::vector<Message> messages;
  bool begun = false;  ///< messages in order: those before it are through
};

struct Message {
  double sent = -1, received = -1;  ///< when each end came to it
  double end = -1;                  ///< when it has landed
};

/// Ranks that meet: they go at the longest of their costs when the last of them has come.
struct Meeting {
  std::vector<PortUse> came;
  double end = -1;
};

}  // namespace

struct Replays::Compiled {
  ReplayInput in;
  std::vector<std::vector<Action>> lists;
  std::vector<TimedRank> ranks;
  MessageCosts messages;
};

namespace {

class Simulation {
 public:
  Simulation(const ReplayInput& in, const std::vector<std::vector<Action>>& lists, const std::vector<TimedRank>& timed, const MessageCosts& messages,
             const ReplayOptions& options)
      : in_(in), lists_(lists), message_costs_(messages), options_(options), links_(static_cast<std::size_t>(in.schedule.stages)) {
    const std::size_t m = static_cast<std::size_t>(in.schedule.microbatches);
    messages_.resize(kSteps * 2 * static_cast<std::size_t>(in.schedule.chunks()) * m);
    for (int r = 0; r < in.schedule.stages; ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.index = r;
      rank.timed = &timed[static_cast<std::size_t>(r)];
      const RankRecord& record = *in.records[static_cast<std::size_t>(r)];
      for (const std::string& group : record.groups) {
        rank.groups.push_back({.name = &group, .meets = meets_other_stages(group)});
        if (rank.groups.back().meets) ++members_[group];
      }
      rank.recvs.assign(2 * static_cast<std::size_t>(in.schedule.virtual_stages) * m, -1);
      rank.sends.resize(2 * static_cast<std::size_t>(in.schedule.virtual_stages));
    }
  }

  Replay run() {
    go();
    Replay result;
    double begin = 0, end = 0, pass = 0, busy = 0;
    for (const Rank& rank : ranks_) {
      base::check(rank.step == kSteps, "a schedule that was checked runs to its end");
      begin = std::max(begin, rank.began), end = std::max(end, rank.now);
    }
    double first = ranks_.front().began, last = 0;
    for (const Rank& rank : ranks_) first = std::min(first, rank.began), last = std::max(last, rank.pass_ended);
    for (const Rank& rank : ranks_) {
      result.ranks.push_back(rank.ledger);
      busy += rank.pass_busy, pass += last - first;
    }
    result.step_seconds = end - begin;
    result.bubble = pass > 0 ? std::max(0.0, 1 - busy / pass) : 0;
    const double n = static_cast<double>(ranks_.size());
    for (const Part part : {&TimeLedger::compute, &TimeLedger::exposed_tp, &TimeLedger::exposed_dp, &TimeLedger::exposed_pp,
                            &TimeLedger::exposed_world, &TimeLedger::bubble, &TimeLedger::optimizer})
      for (const TimeLedger& ledger : result.ranks) result.mean.*part += ledger.*part / n;
    return result;
  }

 private:
  struct Collective {
    int index = -1;  ///< of the record; none: over when it is issued
    const Action* action = nullptr;
    int step = 0;
    double start = 0, end = -1;
  };
  struct Group {
    const std::string* name = nullptr;
    bool meets = false;  ///< ranks of other stages
    std::vector<Collective> issued = {};
    std::size_t ended = 0;  ///< of those that are not meetings
  };
  enum class Phase : std::uint8_t { start, before, actions, landing, after };
  struct Rank {
    int index = 0;
    const TimedRank* timed = nullptr;
    double factor = 1;                  ///< of its work now
    const Action* action = nullptr;     ///< under way
    double now = 0, host = 0, began = 0, pass_ended = 0, pass_busy = 0;
    int step = 0;
    Phase phase = Phase::start;
    std::size_t at = 0;  ///< action or flight
    const TimedSegment* segment = nullptr;  ///< of its action, if there is one
    std::size_t event = 0;                  ///< of the segment that it passes now
    bool parked = false;   ///< until something ends that it waits for
    int under_way = 0;     ///< transfers of its groups and messages, queued ones too
    bool carries = false;  ///< a transfer that it has stopped for
    double carried = -1;   ///< when that ended
    std::vector<Group> groups;
    std::vector<Flight> flights;
    std::size_t through = 0;                       ///< flights, of messages in order
    std::vector<std::int64_t> recvs;               ///< flights, by direction, chunk and microbatch
    std::vector<std::vector<std::int64_t>> sends;  ///< flights, by direction and chunk
    TimeLedger ledger;
  };

  static bool forwards(ActionKind kind) { return kind == ActionKind::send_forward || kind == ActionKind::recv_forward; }
  int local(int chunk) const { return chunk / in_.schedule.stages; }

  /// A message by its receiver's chunk and microbatch.
  std::size_t message_of(const Action& a, int step) const {
    const bool forward = forwards(a.kind);
    const int chunk = parallel::is_receive(a.kind) ? a.chunk : a.chunk + (forward ? 1 : -1);
    const std::size_t chunks = static_cast<std::size_t>(in_.schedule.chunks());
    const std::size_t direction = static_cast<std::size_t>(step) * 2 + (forward ? 0 : 1);
    return (direction * chunks + static_cast<std::size_t>(chunk)) * static_cast<std::size_t>(in_.schedule.microbatches) +
           static_cast<std::size_t>(a.microbatch);
  }
  std::size_t lane(bool forward, int chunk) const {
    return (forward ? 0 : 1) * static_cast<std::size_t>(in_.schedule.virtual_stages) + static_cast<std::size_t>(local(chunk));
  }

  std::size_t place(const Action& a, bool forward) const {
    return lane(forward, a.chunk) * static_cast<std::size_t>(in_.schedule.microbatches) + static_cast<std::size_t>(a.microbatch);
  }

  /// Messages that go out as one.
  void post(Rank& rank, std::span<const Action> group) {
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

  /// The rank has come to a message.
  void come(const Rank& rank, const Flight::Message& message) {
    Message& m = messages_[message.id];
    (message.sends ? m.sent : m.received) = clock_;
    if (in_.messages_in_order && (m.sent < 0 || m.received < 0)) return;
    send(message.id, message.sends ? rank.index : message.action->peer, message.sends ? message.action->peer : rank.index);
  }

  /// Messages in order: the rank comes to its next ones when those before them are through.
  void exchange(Rank& rank) {
    for (; rank.through < rank.flights.size(); ++rank.through) {
      Flight& flight = rank.flights[rank.through];
      if (!std::exchange(flight.begun, true))
        for (const Flight::Message& message : flight.messages) come(rank, message);
      for (const Flight::Message& message : flight.messages)
        if (messages_[message.id].end < 0) return;
    }
  }

  /// Goes on to when the flight has landed; false when that is not known yet.
  bool land(Rank& rank, std::int64_t index) {
    if (index < 0) return true;
    double end = 0;
    for (const Flight::Message& message : rank.flights[static_cast<std::size_t>(index)].messages) {
      if (message.sends && !in_.messages_in_order) continue;
      const Message& m = messages_[message.id];
      if (m.end < 0) return false;
      end = std::max(end, m.end);
    }
    for (Flight::Message& message : rank.flights[static_cast<std::size_t>(index)].messages) {
      const Message& m = messages_[message.id];
      const double start = std::max(m.sent, m.received);
      if (!message.sends) tell(rank, ReplaySlice::Kind::message, "message", std::exchange(message.action, nullptr), start, m.end - start);
    }
    if (end > rank.now) {
      if (options_.observe) tell(rank, ReplaySlice::Kind::stall, name_of(&TimeLedger::bubble), nullptr, rank.now, end - rank.now);
      rank.ledger.bubble += end - rank.now;
      rank.now = end;
    }
    return true;
  }

  /// The second step is the one that is looked at.
  void tell(const Rank& rank, ReplaySlice::Kind kind, const char* name, const Action* action, double start, double seconds) const {
    tell(rank, rank.step, kind, name, action, start, seconds);
  }
  void tell(const Rank& rank, int step, ReplaySlice::Kind kind, const char* name, const Action* action, double start, double seconds) const {
    if (!options_.observe || step + 1 != kSteps || seconds <= 0 || (kind == ReplaySlice::Kind::message && action == nullptr)) return;
    options_.observe({kind, rank.index, name, action, start, seconds});
  }

  /// What the rank does from now on, an action or what is before and after all.
  void enter(Rank& rank, const Action* action) const {
    rank.action = action;
    rank.factor = options_.slowdown ? options_.slowdown(rank.index, action) : 1;
  }

  void spend(Rank& rank, double seconds, Part part) {
    const bool work = part == &TimeLedger::compute || part == &TimeLedger::optimizer;
    if (work) seconds *= rank.factor;
    if (options_.observe) tell(rank, work ? ReplaySlice::Kind::work : ReplaySlice::Kind::stall, name_of(part), rank.action, rank.now, seconds);
    rank.now += seconds;
    rank.ledger.*part += seconds;
    if (rank.phase != Phase::after) rank.pass_busy += seconds;
  }

  void work(Rank& rank, const TimedEvent& e) {
    const double end = std::max(rank.now + e.seconds, rank.host + e.behind_host);
    rank.host += e.host;
    spend(rank, end - rank.now, e.part);
  }

  /// A collective that stops the rank; false until it has ended.
  bool carry(Rank& rank, const TimedEvent& e) {
    if (!rank.carries) {
      const TransferCost& cost = rank.timed->costs[static_cast<std::size_t>(e.collective)];
      const double start = std::max(rank.now, rank.host + e.host);
      rank.host += e.host;
      // It has its links to itself, and the rank, which stands still, starts nothing else on them.
      if (rank.under_way == 0 && !e.met) {
        spend(rank, start + cost.seconds() - rank.now, e.part);
        return true;
      }
      rank.carries = true, rank.carried = -1;
      const PortUse use{PortUse::Way::both, rank.index, &cost};
      begin({.kind = Owner::Kind::stop, .rank = rank.index}, start - clock_ + cost.latency, cost.bandwidth, {&use, 1});
      return false;
    }
    if (rank.carried < 0) return false;
    rank.carries = false;
    spend(rank, rank.carried - rank.now, e.part);
    return true;
  }

  void issue(Rank& rank, const TimedEvent& e) {
    Group& group = rank.groups[static_cast<std::size_t>(e.group)];
    group.issued.push_back({.index = e.collective, .action = rank.action, .step = rank.step});
    ++rank.under_way;
    if (!group.meets) {
      if (group.ended + 1 == group.issued.size()) go_on(rank, e.group);
      return;
    }
    Meeting& meeting = meetings_[*group.name][group.issued.size() - 1];
    meeting.came.push_back({PortUse::Way::both, rank.index, &rank.timed->costs[static_cast<std::size_t>(e.collective)]});
    if (std::ssize(meeting.came) < members_[*group.name]) return;
    const auto by_seconds = [](const PortUse& a, const PortUse& b) { return a.cost->seconds() < b.cost->seconds(); };
    const TransferCost& longest = *std::max_element(meeting.came.begin(), meeting.came.end(), by_seconds)->cost;
    begin({.kind = Owner::Kind::meeting, .meeting = &meeting}, longest.latency, longest.bandwidth, meeting.came);
  }

  /// The next collective of a group goes when those before it have ended.
  void go_on(Rank& rank, int g) {
    Group& group = rank.groups[static_cast<std::size_t>(g)];
    if (group.ended == group.issued.size()) return;
    Collective& next = group.issued[group.ended];
    next.start = clock_;
    static constexpr TransferCost kNothing;
    const TransferCost& cost = next.index < 0 ? kNothing : rank.timed->costs[static_cast<std::size_t>(next.index)];
    const PortUse use{PortUse::Way::both, rank.index, &cost};
    begin({.kind = Owner::Kind::group, .rank = rank.index, .group = g}, cost.latency, cost.bandwidth, {&use, 1});
  }

  void send(std::size_t id, int from, int to) {
    const TransferCost& cost = message_costs_[static_cast<std::size_t>(from)][is_next(in_.schedule, from, to) ? 0 : 1];
    ++ranks_[static_cast<std::size_t>(from)].under_way, ++ranks_[static_cast<std::size_t>(to)].under_way;
    const std::array uses{PortUse{PortUse::Way::out, from, &cost}, PortUse{PortUse::Way::in, to, &cost}};
    begin({.kind = Owner::Kind::message, .rank = from, .peer = to, .message = id}, cost.latency, cost.bandwidth, uses);
  }

  bool wait(Rank& rank, const TimedEvent& e) {
    const Group& group = rank.groups[static_cast<std::size_t>(e.group)];
    const std::int64_t index = std::ssize(group.issued) - 1 - e.behind;
    if (index < 0) return true;
    const auto i = static_cast<std::size_t>(index);
    const double end = group.meets ? meetings_[*group.name][i].end : group.issued[i].end;
    if (end < 0) return false;
    if (end > rank.now) spend(rank, end - rank.now, part_of(*group.name));
    return true;
  }

  /// Events from where the rank stands in them; false when it must wait, for its turn or for what has not ended.
  bool pass(Rank& rank, const TimedSegment& segment) {
    for (; rank.event < segment.size(); ++rank.event) {
      const TimedEvent& e = segment[rank.event];
      if (e.kind == TimedEvent::Kind::pass) {
        work(rank, e);
        continue;
      }
      if (rank.now > clock_) return false;
      if (e.kind == TimedEvent::Kind::issue) issue(rank, e);
      else if (e.kind == TimedEvent::Kind::wait ? !wait(rank, e) : !carry(rank, e)) return false;
    }
    rank.event = 0;
    return true;
  }

  void start_step(Rank& rank) {
    rank.began = rank.host = rank.now;  // the host has read the last step's report
    rank.pass_busy = 0;
    enter(rank, nullptr);
    rank.ledger = {};
    rank.flights.clear();
    rank.through = 0;
    std::fill(rank.recvs.begin(), rank.recvs.end(), -1);
    for (auto& sends : rank.sends) sends.clear();
    rank.phase = Phase::before;
    rank.at = 0;
  }

  /// The step that the rank can take next; false when it has none, is ahead of the clock, or must wait for something to end.
  bool advance(Rank& rank) {
    if (rank.step == kSteps) return false;
    switch (rank.phase) {
      case Phase::start: start_step(rank); return true;
      case Phase::before: {
        if (!pass(rank, rank.timed->before)) return false;
        rank.phase = Phase::actions;
        return true;
      }
      case Phase::actions: return act(rank);
      case Phase::landing: {
        for (; rank.at < rank.flights.size(); ++rank.at)
          if (!land(rank, static_cast<std::int64_t>(rank.at))) return false;
        rank.pass_ended = rank.now;
        enter(rank, nullptr);
        rank.phase = Phase::after;
        rank.at = 0;
        return true;
      }
      case Phase::after: {
        if (!pass(rank, rank.timed->after)) return false;
        ++rank.step;
        rank.phase = Phase::start;
        return true;
      }
    }
    return false;
  }

  bool act(Rank& rank) {
    const std::vector<Action>& list = lists_[static_cast<std::size_t>(rank.index)];
    if (rank.at == list.size()) {
      rank.phase = Phase::landing;
      rank.at = 0;
      return true;
    }
    const Action& a = list[rank.at];
    if (rank.action != nullptr) return compute(rank);
    if (!in_.overlap_p2p && !rank.flights.empty() && !land(rank, std::ssize(rank.flights) - 1)) return false;
    if (parallel::is_send(a.kind) || parallel::is_receive(a.kind)) {
      const std::span<const Action> rest = std::span(list).subspan(rank.at), group = rest.first(parallel::group_size(rest));
      post(rank, group);
      rank.at += group.size();
      return true;
    }
    if (!land_for(rank, a)) return false;
    if (in_.messages_stop_host && in_.schedule.stages > 1) rank.host = std::max(rank.host, rank.now);
    enter(rank, &a);
    const auto segment = rank.timed->actions.find({local(a.chunk), a.kind, turn_of(a.microbatch, in_.schedule.microbatches)});
    rank.segment = segment == rank.timed->actions.end() ? nullptr : &segment->second;
    return compute(rank);
  }

  bool compute(Rank& rank) {
    if (rank.segment != nullptr && !pass(rank, *rank.segment)) return false;
    rank.action = nullptr;
    ++rank.at;
    return true;
  }

  /// What the executor awaits before it computes: the message that it reads, and the send of what it writes anew, two before.
  bool land_for(Rank& rank, const Action& a) {
    if (a.kind == ActionKind::reduce_grads || a.kind == ActionKind::backward_weight) return true;
    const bool forward = a.kind == ActionKind::forward || a.kind == ActionKind::forward_only;
    const std::vector<std::int64_t>& sends = rank.sends[lane(forward, a.chunk)];
    if (sends.size() >= 2 && !land(rank, sends[sends.size() - 2])) return false;
    return land(rank, rank.recvs[place(a, forward)]);
  }

  /// Whose a transfer is.
  struct Owner {
    enum class Kind : std::uint8_t { stop, group, meeting, message } kind = Kind::stop;
    int rank = 0, peer = 0;  ///< a message's are its ends
    int group = 0;
    std::size_t message = 0;
    Meeting* meeting = nullptr;
  };

  void begin(const Owner& owner, double latency, double bandwidth, std::span<const PortUse> uses) {
    const std::size_t id = links_.start(clock_, latency, bandwidth, uses);
    if (owners_.size() <= id) owners_.resize(id + 1);
    owners_[id] = owner;
  }

  void finish(const Owner& o) {
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
        tell(rank, c.step, ReplaySlice::Kind::collective, group.name->c_str(), c.action, c.start, c.end - c.start);
        ended(o.rank);
        return go_on(rank, o.group);
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

  void wake(Rank& rank) {
    if (rank.parked) turns_.push({clock_, rank.index});
    rank.parked = false;
  }

  /// All ranks and transfers in the order of time. What ends does so before anything else goes on at that time.
  void go() {
    for (const Rank& rank : ranks_) turns_.push({0, rank.index});
    for (;;) {
      const double next = links_.next();
      if (turns_.empty() || next <= turns_.top().first) {
        if (next == std::numeric_limits<double>::infinity()) return;
        clock_ = next;
        if (const std::size_t id = links_.step(); id != LinkSharing::kNone) finish(Owner(owners_[id]));
        continue;
      }
      clock_ = turns_.top().first;
      Rank& rank = ranks_[static_cast<std::size_t>(turns_.top().second)];
      turns_.pop();
      for (bool alone = true; alone;) {
        while (rank.now <= clock_ && advance(rank)) {}
        // It goes on at once where nothing comes before.
        alone = rank.now > clock_ && rank.now < links_.next() && (turns_.empty() || rank.now < turns_.top().first);
        if (alone) clock_ = rank.now;
      }
      if (rank.now > clock_) turns_.push({rank.now, rank.index});
      else rank.parked = true;
    }
  }

  const ReplayInput& in_;
  const std::vector<std::vector<Action>>& lists_;
  const MessageCosts& message_costs_;
  const ReplayOptions& options_;
  std::vector<Rank> ranks_;
  std::vector<Message> messages_;
  std::map<std::string, std::map<std::size_t, Meeting>> meetings_;
  std::map<std::string, int> members_;
  LinkSharing links_;
  std::vector<Owner> owners_;  // by transfer
  double clock_ = 0;
  using Turn = std::pair<double, int>;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<Turn>> turns_;  // when ranks are to go on
};

}  // namespace

Replays::Replays(ReplayInput input) {
  auto compiled = std::make_unique<Compiled>();
  compiled->lists = parallel::make_schedules(input.schedule);
  for (int r = 0; r < input.schedule.stages; ++r) {
    compiled->ranks.push_back(timed_rank(input, r));
    auto& costs = compiled->messages.emplace_back();
    for (const int peer : neighbours(input.schedule, r)) costs[is_next(input.schedule, r, peer) ? 0 : 1] = input.message_cost(r, peer);
  }
  compiled->in = std::move(input);
  compiled_ = std::move(compiled);
}

Replays::~Replays() = default;

Replay Replays::run(const ReplayOptions& options) const {
  return Simulation(compiled_->in, compiled_->lists, compiled_->ranks, compiled_->messages, options).run();
}

Replay replay(const ReplayInput& input) { return Replays(input).run(); }

}  // namespace trainerd::core
