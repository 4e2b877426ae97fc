#include "core/plan/replay/timed_rank.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/plan/replay/graph_issue.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::plan {
namespace {

using Part = base::LedgerPart;

/// Ports that a rank or a transfer uses.
struct Ports {
  std::array<bool, kPorts> used{};
  void add(const TransferCost& cost) {
    for (std::size_t i = 0; i < kPorts; ++i) used[i] = used[i] || cost.shares[i] > 0;
  }
  bool any_of(const TransferCost& cost) const {
    for (std::size_t i = 0; i < kPorts; ++i)
      if (used[i] && cost.shares[i] > 0) return true;
    return false;
  }
};

class Compiler {
 public:
  Compiler(const ReplayInput& in, int rank)
      : record_(*in.records[static_cast<std::size_t>(rank)]),
        own_progress_(in.own_progress),
        launch_seconds_(in.launch_seconds),
        compared_seconds_(in.compared_seconds),
        graphs_(!in.graphs.empty() && in.graphs[static_cast<std::size_t>(rank)]) {
    for (const rank::RecordedOp& op : record_.ops) op_seconds_.push_back(in.op_seconds(op));
    for (const rank::RecordedCollective& c : record_.collectives)
      costs_.push_back(in.collective_cost(rank, c, record_));
    at_once_.assign(record_.groups.size(), true);
    for (std::size_t g = 0; g < record_.groups.size(); ++g)
      if (info(record_.groups[g]).joins_stages) at_once_[g] = false;
    const auto look = [&](const rank::RecordedSegment& segment) {
      for (std::size_t i = 0; i < segment.size(); ++i) {
        if (segment[i].kind != rank::RecordedEvent::Kind::issue) continue;
        const auto g = static_cast<std::size_t>(group_of(segment[i]));
        const bool awaited = i + 1 < segment.size() &&
                             segment[i + 1].kind == rank::RecordedEvent::Kind::wait &&
                             segment[i + 1].index == static_cast<int>(g) && segment[i + 1].behind == 0;
        if (!awaited || segment[i].after >= 0) at_once_[g] = false;
        if (segment[i].after >= 0) at_once_[static_cast<std::size_t>(segment[i].after)] = false;
      }
    };
    look(record_.before), look(record_.after);
    for (const auto& [key, segment] : record_.actions) look(segment);
    for (const int peer : neighbours(in.schedule, rank))
      messages_.add(in.message_cost(rank, peer)), messages_.add(in.message_cost(peer, rank));
    others_ = messages_;
    for (std::size_t i = 0; i < costs_.size(); ++i)
      if (!stops_rank(record_.collectives[i])) others_.add(costs_[i]);
  }

  TimedRank timed() const {
    TimedRank rank{timed(record_.before, base::LedgerPart::compute),
                   timed(record_.after, base::LedgerPart::optimizer),
                   {},
                   costs_};
    for (const auto& [key, segment] : record_.actions)
      rank.actions[key] = timed(segment, base::LedgerPart::compute, graphs_);
    return rank;
  }

 private:
  int group_of(const rank::RecordedEvent& e) const {
    return record_.collectives[static_cast<std::size_t>(e.index)].group;
  }
  bool stops_rank(const rank::RecordedCollective& c) const {
    const auto g = static_cast<std::size_t>(c.group);
    return at_once_[g] || (!(c.background && own_progress_) && !info(record_.groups[g]).joins_stages);
  }

  TimedSegment timed(const rank::RecordedSegment& segment, Part work, bool graphs = false) const {
    TimedSegment out;
    const auto pass = [&](double seconds, Part part, double host) {
      if (out.empty() || out.back().kind != TimedEvent::Kind::pass || out.back().part != part)
        out.push_back({.kind = TimedEvent::Kind::pass, .part = part});
      TimedEvent& run = out.back();
      run.behind_host = std::max(run.behind_host, run.host + host) + seconds;
      run.host += host;
      run.seconds += seconds;
    };
    std::vector<double> list;  // seconds of consecutive operators
    const auto put_list = [&] {
      if (static_cast<std::int64_t>(list.size()) < kernels::kMinGraphCalls)
        for (const double seconds : list) pass(seconds, work, launch_seconds_);
      else
        pass(std::accumulate(list.begin(), list.end(), 0.0), work,
             launch_seconds_ + static_cast<double>(list.size()) * compared_seconds_);
      list.clear();
    };
    for (const rank::RecordedEvent& e : segment) {
      const auto i = static_cast<std::size_t>(e.index);
      if (e.kind == rank::RecordedEvent::Kind::op) {
        if (graphs && joins_list(record_.ops[i])) {
          list.push_back(op_seconds_[i]);
          continue;
        }
        put_list();
        pass(op_seconds_[i], work, launch_seconds_);
        continue;
      }
      put_list();
      if (e.kind == rank::RecordedEvent::Kind::wait) {
        if (!at_once_[i])
          out.push_back({.kind = TimedEvent::Kind::wait, .group = e.index, .behind = e.behind});
      } else {
        const rank::RecordedCollective& c = record_.collectives[i];
        const bool stops = stops_rank(c);
        const Part part = info(record_.groups[static_cast<std::size_t>(c.group)]).issue;
        if (stops && others_.any_of(costs_[i]))
          out.push_back({.kind = TimedEvent::Kind::transfer,
                         .part = part,
                         .host = launch_seconds_,
                         .collective = e.index,
                         .met = messages_.any_of(costs_[i])});
        else if (stops) pass(costs_[i].seconds(), part, launch_seconds_);
        if (!at_once_[static_cast<std::size_t>(c.group)])
          out.push_back({.kind = TimedEvent::Kind::issue,
                         .group = c.group,
                         .after = e.after,
                         .behind = e.behind,
                         .collective = stops ? -1 : e.index});
      }
    }
    put_list();
    return out;
  }

  const rank::RankRecord& record_;
  bool own_progress_;
  double launch_seconds_, compared_seconds_;
  bool graphs_;
  std::vector<double> op_seconds_;
  std::vector<TransferCost> costs_;
  std::vector<bool> at_once_;  // by group: every collective is awaited by the next event
  Ports messages_, others_;    // of messages; of all traffic beside compute
};

}  // namespace

std::vector<int> neighbours(const parallel::ScheduleShape& shape, int pipeline_rank) {
  std::vector<int> peers;
  if (shape.ring() || pipeline_rank + 1 < shape.stages) peers.push_back((pipeline_rank + 1) % shape.stages);
  if (shape.ring() || pipeline_rank > 0) peers.push_back((pipeline_rank + shape.stages - 1) % shape.stages);
  return peers;
}

TimedRank timed_rank(const ReplayInput& input, int pipeline_rank) {
  return Compiler(input, pipeline_rank).timed();
}

}  // namespace trainerd::core::plan
