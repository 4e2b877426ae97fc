#include "core/plan/replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

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

/// Ranks of other pipeline stages are in these groups.
bool meets_other_stages(const std::string& group) { return group == "world" || group == "tied"; }

Part part_of(const std::string& group) {
  if (group == "tp" || group == "kv") return &TimeLedger::exposed_tp;
  if (group == "world") return &TimeLedger::exposed_world;
  if (group == "tied" || group == "pp") return &TimeLedger::exposed_pp;
  return &TimeLedger::exposed_dp;
}

/// An event with its seconds. Runs of operators, and collectives that are awaited at once, are one of kind `pass`.
struct TimedEvent {
  enum class Kind : std::uint8_t { pass, issue, wait } kind = Kind::pass;
  int group = 0;
  std::int64_t behind = 0;
  double seconds = 0;
  Part part = nullptr;  ///< of a `pass`
  /// Of a `pass`: the host's own seconds, and from its start to the device's end when the device was waiting for it.
  double host = 0, behind_host = 0;
};
using TimedSegment = std::vector<TimedEvent>;

struct TimedRank {
  TimedSegment before, after;
  std::map<ActionKey, TimedSegment> actions;
};

class Compiler {
 public:
  Compiler(const ReplayInput& in, std::int64_t rank) : record_(*in.records[static_cast<std::size_t>(rank)]), own_progress_(in.own_progress), launch_seconds_(in.launch_seconds) {
    for (const RecordedOp& op : record_.ops) op_seconds_.push_back(in.op_seconds(op));
    for (const RecordedCollective& c : record_.collectives) collective_seconds_.push_back(in.collective_seconds(rank, c, record_));
    at_once_.assign(record_.groups.size(), true);
    for (std::size_t g = 0; g < record_.groups.size(); ++g)
      if (meets_other_stages(record_.groups[g])) at_once_[g] = false;
    const auto look = [&](const RecordedSegment& segment) {
      for (std::size_t i = 0; i < segment.size(); ++i) {
        if (segment[i].kind != RecordedEvent::Kind::issue) continue;
        const auto g = static_cast<std::size_t>(group_of(segment[i]));
        const bool awaited = i + 1 < segment.size() && segment[i + 1].kind == RecordedEvent::Kind::wait &&
                             segment[i + 1].index == static_cast<int>(g) && segment[i + 1].behind == 0;
        if (!awaited) at_once_[g] = false;
      }
    };
    look(record_.before), look(record_.after);
    for (const auto& [key, segment] : record_.actions) look(segment);
  }

  TimedRank timed() const {
    TimedRank rank{timed(record_.before, &TimeLedger::compute), timed(record_.after, &TimeLedger::optimizer), {}};
    for (const auto& [key, segment] : record_.actions) rank.actions[key] = timed(segment, &TimeLedger::compute);
    return rank;
  }

 private:
  int group_of(const RecordedEvent& e) const { return record_.collectives[static_cast<std::size_t>(e.index)].group; }

  TimedSegment timed(const RecordedSegment& segment, Part work) const {
    TimedSegment out;
    const auto pass = [&](double seconds, Part part) {
      if (out.empty() || out.back().kind != TimedEvent::Kind::pass || out.back().part != part)
        out.push_back({TimedEvent::Kind::pass, 0, 0, 0, part, 0, 0});
      TimedEvent& run = out.back();
      run.behind_host = std::max(run.behind_host, run.host + launch_seconds_) + seconds;
      run.host += launch_seconds_;
      run.seconds += seconds;
    };
    for (const RecordedEvent& e : segment) {
      const auto i = static_cast<std::size_t>(e.index);
      if (e.kind == RecordedEvent::Kind::op) {
        pass(op_seconds_[i], work);
      } else if (e.kind == RecordedEvent::Kind::wait) {
        if (!at_once_[i]) out.push_back({TimedEvent::Kind::wait, e.index, e.behind, 0, nullptr, 0, 0});
      } else {
        const RecordedCollective& c = record_.collectives[i];
        const bool stops = !(c.background && own_progress_) && !meets_other_stages(record_.groups[static_cast<std::size_t>(c.group)]);
        if (at_once_[static_cast<std::size_t>(c.group)] || stops)
          pass(collective_seconds_[i], part_of(record_.groups[static_cast<std::size_t>(c.group)]));
        if (!at_once_[static_cast<std::size_t>(c.group)])
          out.push_back({TimedEvent::Kind::issue, c.group, 0, stops ? 0 : collective_seconds_[i], nullptr, 0, 0});
      }
    }
    return out;
  }

  const RankRecord& record_;
  bool own_progress_;
  double launch_seconds_;
  std::vector<double> op_seconds_, collective_seconds_;
  std::vector<bool> at_once_;  // by group: every collective is awaited by the next event
};

/// Messages that go out together.
struct Flight {
  struct Message {
    std::size_t id;
    bool sends;
    double seconds;
    const Action* action;  ///< none: told of already
  };
  std::vector<Message> messages;
};

struct Message {
  double sent = -1, received = -1;  ///< when each end posted it
};

/// Ranks that meet: when the last of them came, if all did.
struct Meeting {
  int came = 0;
  double last = 0, seconds = 0;
};

}  // namespace

struct Replays::Compiled {
  ReplayInput in;
  std::vector<std::vector<Action>> lists;
  std::vector<TimedRank> ranks;
};

namespace {

class Simulation {
 public:
  Simulation(const ReplayInput& in, const std::vector<std::vector<Action>>& lists, const std::vector<TimedRank>& timed, const ReplayOptions& options)
      : in_(in), lists_(lists), options_(options) {
    const std::size_t m = static_cast<std::size_t>(in.schedule.microbatches);
    messages_.resize(kSteps * 2 * static_cast<std::size_t>(in.schedule.chunks()) * m);
    for (int r = 0; r < in.schedule.stages; ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.index = r;
      rank.timed = &timed[static_cast<std::size_t>(r)];
      const RankRecord& record = *in.records[static_cast<std::size_t>(r)];
      rank.groups.resize(record.groups.size());
      rank.recvs.assign(2 * static_cast<std::size_t>(in.schedule.virtual_stages) * m, -1);
      rank.sends.resize(2 * static_cast<std::size_t>(in.schedule.virtual_stages));
      for (const std::string& group : record.groups)
        if (meets_other_stages(group)) ++members_[group];
    }
  }

  Replay run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank& rank : ranks_)
        while (advance(rank)) moved = true;
    }
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
  struct Group {
    double free = 0;
    std::vector<double> ends;  ///< of what was issued; of a meeting, when this rank came
  };
  enum class Phase : std::uint8_t { before, actions, landing, after };
  struct Rank {
    int index = 0;
    const TimedRank* timed = nullptr;
    double factor = 1;                  ///< of its work now
    const Action* action = nullptr;     ///< under way
    double now = 0, host = 0, began = 0, pass_ended = 0, pass_busy = 0;
    int step = 0;
    Phase phase = Phase::before;
    std::size_t at = 0;      ///< action, or event of `after`
    bool landed_send = false;
    std::vector<Group> groups;
    std::vector<Flight> flights;
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

  void post(Rank& rank, const Action& a) {
    Flight& flight = rank.flights.back();
    const std::size_t id = message_of(a, rank.step);
    const bool sends = parallel::is_send(a.kind);
    flight.messages.push_back({id, sends, sends ? in_.message_seconds(rank.index, a.peer) : in_.message_seconds(a.peer, rank.index), &a});
    (sends ? messages_[id].sent : messages_[id].received) = rank.now;
    const std::int64_t index = static_cast<std::int64_t>(rank.flights.size()) - 1;
    if (sends) rank.sends[lane(forwards(a.kind), a.chunk)].push_back(index);
    else rank.recvs[place(a, forwards(a.kind))] = index;
  }

  /// Goes on to when the flight has landed; false when that is not known yet.
  bool land(Rank& rank, std::int64_t index) {
    if (index < 0) return true;
    double end = 0;
    for (const Flight::Message& message : rank.flights[static_cast<std::size_t>(index)].messages) {
      const Message& m = messages_[message.id];
      if (m.sent < 0 || m.received < 0) return false;
      end = std::max(end, std::max(m.sent, m.received) + message.seconds);
    }
    for (Flight::Message& message : rank.flights[static_cast<std::size_t>(index)].messages) {
      const Message& m = messages_[message.id];
      if (!message.sends) tell(rank, ReplaySlice::Kind::message, "message", std::exchange(message.action, nullptr), std::max(m.sent, m.received), message.seconds);
    }
    if (end > rank.now) {
      tell(rank, ReplaySlice::Kind::stall, name_of(&TimeLedger::bubble), nullptr, rank.now, end - rank.now);
      rank.ledger.bubble += end - rank.now;
      rank.now = end;
    }
    return true;
  }

  /// The second step is the one that is looked at.
  void tell(const Rank& rank, ReplaySlice::Kind kind, const char* name, const Action* action, double start, double seconds) const {
    if (!options_.observe || rank.step + 1 != kSteps || seconds <= 0 || (kind == ReplaySlice::Kind::message && action == nullptr)) return;
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
    tell(rank, work ? ReplaySlice::Kind::work : ReplaySlice::Kind::stall, name_of(part), rank.action, rank.now, seconds);
    rank.now += seconds;
    rank.ledger.*part += seconds;
    if (rank.phase != Phase::after) rank.pass_busy += seconds;
  }

  void work(Rank& rank, const TimedEvent& e) {
    const double end = std::max(rank.now + e.seconds, rank.host + e.behind_host);
    rank.host += e.host;
    spend(rank, end - rank.now, e.part);
  }

  void issue(Rank& rank, const TimedEvent& e) {
    Group& group = rank.groups[static_cast<std::size_t>(e.group)];
    const std::string& name = in_.records[static_cast<std::size_t>(rank.index)]->groups[static_cast<std::size_t>(e.group)];
    if (!meets_other_stages(name)) {
      tell(rank, ReplaySlice::Kind::collective, name.c_str(), rank.action, std::max(group.free, rank.now), e.seconds);
      group.free = std::max(group.free, rank.now) + e.seconds;
      group.ends.push_back(group.free);
      return;
    }
    Meeting& meeting = meetings_[name][group.ends.size()];
    ++meeting.came;
    meeting.last = std::max(meeting.last, rank.now);
    meeting.seconds = std::max(meeting.seconds, e.seconds);
    group.ends.push_back(rank.now);
  }

  bool wait(Rank& rank, const TimedEvent& e) {
    const Group& group = rank.groups[static_cast<std::size_t>(e.group)];
    const std::int64_t index = static_cast<std::int64_t>(group.ends.size()) - 1 - e.behind;
    if (index < 0) return true;
    const std::string& name = in_.records[static_cast<std::size_t>(rank.index)]->groups[static_cast<std::size_t>(e.group)];
    double end = group.ends[static_cast<std::size_t>(index)];
    if (meets_other_stages(name)) {
      const Meeting& meeting = meetings_[name][static_cast<std::size_t>(index)];
      if (meeting.came < members_[name]) return false;
      end = meeting.last + meeting.seconds;
    }
    if (end > rank.now) spend(rank, end - rank.now, part_of(name));
    return true;
  }

  /// One event; of a kind that never stops.
  void pass(Rank& rank, const TimedSegment& segment) {
    for (const TimedEvent& e : segment) {
      if (e.kind == TimedEvent::Kind::pass) work(rank, e);
      else if (e.kind == TimedEvent::Kind::issue) issue(rank, e);
      else base::check(wait(rank, e), "an action awaits no other stage but for messages");
    }
  }

  void start_step(Rank& rank) {
    rank.began = rank.host = rank.now;  // the host has read the last step's report
    rank.pass_busy = 0;
    enter(rank, nullptr);
    rank.ledger = {};
    rank.flights.clear();
    std::fill(rank.recvs.begin(), rank.recvs.end(), -1);
    for (auto& sends : rank.sends) sends.clear();
    pass(rank, rank.timed->before);
    rank.phase = Phase::actions;
    rank.at = 0;
  }

  /// The step that the rank can take next; false when it has none, or must wait for another rank.
  bool advance(Rank& rank) {
    if (rank.step == kSteps) return false;
    const std::size_t from = rank.at;  // what was done before a wait counts as a step: others may wait for it
    switch (rank.phase) {
      case Phase::before: start_step(rank); return true;
      case Phase::actions: return act(rank);
      case Phase::landing: {
        for (; rank.at < rank.flights.size(); ++rank.at)
          if (!land(rank, static_cast<std::int64_t>(rank.at))) return rank.at > from;
        rank.pass_ended = rank.now;
        enter(rank, nullptr);
        rank.phase = Phase::after;
        rank.at = 0;
        return true;
      }
      case Phase::after: {
        const TimedSegment& events = rank.timed->after;
        for (; rank.at < events.size(); ++rank.at) {
          const TimedEvent& e = events[rank.at];
          if (e.kind == TimedEvent::Kind::pass) work(rank, e);
          else if (e.kind == TimedEvent::Kind::issue) issue(rank, e);
          else if (!wait(rank, e)) return rank.at > from;
        }
        ++rank.step;
        rank.phase = Phase::before;
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
    if (parallel::is_send(a.kind) || parallel::is_receive(a.kind)) {
      rank.flights.emplace_back();
      for (; rank.at < list.size() && (parallel::is_send(list[rank.at].kind) || parallel::is_receive(list[rank.at].kind)); ++rank.at)
        post(rank, list[rank.at]);
      return true;
    }
    if (!in_.overlap_p2p && !rank.flights.empty() && !land(rank, static_cast<std::int64_t>(rank.flights.size()) - 1)) return false;
    if (!land_for(rank, a)) return false;
    if (in_.messages_stop_host && in_.schedule.stages > 1) rank.host = std::max(rank.host, rank.now);
    const int m = in_.schedule.microbatches;
    const auto segment = rank.timed->actions.find({local(a.chunk), a.kind, turn_of(a.microbatch, m)});
    enter(rank, &a);
    if (segment != rank.timed->actions.end()) pass(rank, segment->second);
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

  const ReplayInput& in_;
  const std::vector<std::vector<Action>>& lists_;
  const ReplayOptions& options_;
  std::vector<Rank> ranks_;
  std::vector<Message> messages_;
  std::map<std::string, std::map<std::size_t, Meeting>> meetings_;
  std::map<std::string, int> members_;
};

}  // namespace

Replays::Replays(ReplayInput input) {
  auto compiled = std::make_unique<Compiled>();
  compiled->lists = parallel::make_schedules(input.schedule);
  for (int r = 0; r < input.schedule.stages; ++r) compiled->ranks.push_back(Compiler(input, r).timed());
  compiled->in = std::move(input);
  compiled_ = std::move(compiled);
}

Replays::~Replays() = default;

Replay Replays::run(const ReplayOptions& options) const {
  return Simulation(compiled_->in, compiled_->lists, compiled_->ranks, options).run();
}

Replay replay(const ReplayInput& input) { return Replays(input).run(); }

}  // namespace trainerd::core
