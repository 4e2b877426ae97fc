#include "core/plan/replay/simulation.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"

namespace trainerd::core::plan {

using base::TimeLedger;
using parallel::Action;
using parallel::ActionKind;

ReplaySimulation::ReplaySimulation(const ReplayInput& in, const std::vector<std::vector<Action>>& lists,
                                   const std::vector<TimedRank>& timed, const MessageCosts& messages,
                                   const ReplayOptions& options)
    : in_(in),
      lists_(lists),
      message_costs_(messages),
      options_(options),
      links_(static_cast<std::size_t>(in.schedule.stages)) {
  const std::size_t m = static_cast<std::size_t>(in.schedule.microbatches);
  messages_.resize(kReplayedSteps * 2 * static_cast<std::size_t>(in.schedule.chunks()) * m);
  for (int r = 0; r < in.schedule.stages; ++r) {
    Rank& rank = ranks_.emplace_back();
    rank.index = r;
    rank.timed = &timed[static_cast<std::size_t>(r)];
    const rank::RankRecord& record = *in.records[static_cast<std::size_t>(r)];
    for (const parallel::Group group : record.groups) {
      rank.groups.push_back({.info = &info(group)});
      if (info(group).joins_stages) ++members_[group];
    }
    rank.recvs.assign(2 * static_cast<std::size_t>(in.schedule.virtual_stages) * m, -1);
    rank.sends.resize(2 * static_cast<std::size_t>(in.schedule.virtual_stages));
  }
}

Replay ReplaySimulation::run() {
  go();
  Replay result;
  double begin = 0, end = 0, pass = 0, busy = 0;
  for (const Rank& rank : ranks_) {
    base::check(rank.step == kReplayedSteps, "a schedule that was checked runs to its end");
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
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    for (const TimeLedger& ledger : result.ranks) result.mean[part.part] += ledger[part.part] / n;
  return result;
}

void ReplaySimulation::emit(const Rank& rank, ReplaySlice::Kind kind, const char* name, const Action* action,
                            double start, double seconds) const {
  emit(rank, rank.step, kind, name, action, start, seconds);
}

void ReplaySimulation::emit(const Rank& rank, int step, ReplaySlice::Kind kind, const char* name,
                            const Action* action, double start, double seconds) const {
  if (!options_.observe || step + 1 != kReplayedSteps || seconds <= 0 ||
      (kind == ReplaySlice::Kind::message && action == nullptr))
    return;
  const bool current = action != nullptr && action == rank.action &&
                       (kind == ReplaySlice::Kind::work || kind == ReplaySlice::Kind::stall);
  options_.observe({kind, rank.index, name, action, start, seconds, current ? rank.other : nullptr});
}

void ReplaySimulation::enter(Rank& rank, const Action* action) const {
  rank.action = action;
  rank.factor = options_.slowdown ? options_.slowdown(rank.index, action) : 1;
}

void ReplaySimulation::spend(Rank& rank, double seconds, Part part) {
  const bool work = part == base::LedgerPart::compute || part == base::LedgerPart::optimizer;
  if (work) seconds *= rank.factor;
  if (options_.observe)
    emit(rank, work ? ReplaySlice::Kind::work : ReplaySlice::Kind::stall, info(part).name, rank.action,
         rank.now, seconds);
  rank.now += seconds;
  rank.ledger[part] += seconds;
  if (rank.phase != Phase::after) rank.pass_busy += seconds;
}

void ReplaySimulation::work(Rank& rank, const TimedEvent& e) {
  const double beside = std::min(rank.beside, e.seconds);
  rank.beside -= beside;
  const bool computes = e.part == base::LedgerPart::compute || e.part == base::LedgerPart::optimizer;
  const double end = std::max(rank.now + e.seconds + (computes ? in_.slowdown_beside * beside : 0),
                              rank.host + e.behind_host);
  rank.host += e.host;
  spend(rank, end - rank.now, e.part);
}

bool ReplaySimulation::pass(Rank& rank, const TimedSegment& segment) {
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

void ReplaySimulation::start_step(Rank& rank) {
  rank.began = rank.host = rank.now;  // the host has read the previous step's report
  rank.pass_busy = rank.beside = 0;
  enter(rank, nullptr);
  rank.ledger = {};
  rank.flights.clear();
  rank.through = 0;
  std::fill(rank.recvs.begin(), rank.recvs.end(), -1);
  for (auto& sends : rank.sends) sends.clear();
  rank.phase = Phase::before;
  rank.at = 0;
}

bool ReplaySimulation::advance(Rank& rank) {
  if (rank.step == kReplayedSteps) return false;
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

bool ReplaySimulation::act(Rank& rank) {
  const std::vector<Action>& list = lists_[static_cast<std::size_t>(rank.index)];
  if (rank.at == list.size()) {
    rank.phase = Phase::landing;
    rank.at = 0;
    return true;
  }
  if (rank.action != nullptr) return compute(rank);
  const Action& a = list[rank.at];
  const std::span<const Action> rest = std::span(list).subspan(rank.at),
                                together = rest.first(parallel::group_size(rest));
  if (!in_.overlap_p2p && !rank.flights.empty() && !land(rank, std::ssize(rank.flights) - 1)) return false;
  if (parallel::is_send(a.kind) || parallel::is_receive(a.kind)) {
    post(rank, together);
    rank.at += together.size();
    return true;
  }
  for (const Action& each : together)
    if (!land_for(rank, each)) return false;
  if (in_.messages_stop_host && in_.schedule.stages > 1) rank.host = std::max(rank.host, rank.now);
  enter(rank, &a);
  rank.other = together.size() > 1 ? &together[1] : nullptr;
  rank.segment = &rank.timed->actions.at(rank::key_of(together, in_.schedule));
  return compute(rank);
}

bool ReplaySimulation::compute(Rank& rank) {
  if (!pass(rank, *rank.segment)) return false;
  rank.at += rank.other != nullptr ? 2 : 1;
  rank.action = rank.other = nullptr;
  return true;
}

void ReplaySimulation::wake(Rank& rank) {
  if (rank.parked) wakeups_.push({clock_, rank.index});
  rank.parked = false;
}

void ReplaySimulation::go() {
  for (const Rank& rank : ranks_) wakeups_.push({0, rank.index});
  for (;;) {
    const double next = links_.next();
    if (wakeups_.empty() || next <= wakeups_.top().first) {
      if (next == std::numeric_limits<double>::infinity()) return;
      clock_ = next;
      if (const std::size_t id = links_.step(); id != LinkSharing::kNone) finish(Owner(owners_[id]));
      continue;
    }
    clock_ = wakeups_.top().first;
    Rank& rank = ranks_[static_cast<std::size_t>(wakeups_.top().second)];
    wakeups_.pop();
    for (bool alone = true; alone;) {
      while (rank.now <= clock_ && advance(rank)) {}
      // The rank continues at once if no other event is earlier.
      alone = rank.now > clock_ && rank.now < links_.next() &&
              (wakeups_.empty() || rank.now < wakeups_.top().first);
      if (alone) clock_ = rank.now;
    }
    if (rank.now > clock_) wakeups_.push({rank.now, rank.index});
    else rank.parked = true;
  }
}

}  // namespace trainerd::core::plan
