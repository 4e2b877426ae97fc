#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/run/supervise/hang_verdict.h"

// Sights of ranks, as an agent may collect them.

namespace trainerd::test::hang {

using core::run::HangLimits;
using core::run::HangVerdict;
using core::run::RankSight;
using core::run::SeenOperation;
using core::train::Activity;
using parallel::FlightState;
using parallel::Group;

using Ranks = std::vector<std::int64_t>;

inline parallel::Layout layout_of(std::int64_t tp, std::int64_t pp, std::int64_t dp) {
  parallel::ParallelOptions options;
  options.tp = tp, options.pp = pp, options.dp = dp;
  parallel::Topology topology;
  topology.nodes = 1, topology.devices_per_node = tp * pp * dp;
  return parallel::resolve_layout(options, topology, {.layers = 8}, 8);
}

/// A rank in the forward pass of a microbatch of step 12. Its last beat was 6 s ago; usual steps take 0.5 s.
inline RankSight sight_of(std::int64_t number, std::int64_t node = 0) {
  RankSight sight{.rank = number, .node = node, .activity = Activity::forward, .step = 12};
  sight.chunk = 0, sight.microbatch = 5;
  sight.activity_seconds = 6.5, sight.beat_seconds = 6;
  sight.steps = 11, sight.step_seconds = 0.5, sight.longest_seconds = 0.2;
  return sight;
}

inline SeenOperation operation(const char* op, const char* group, std::uint64_t sequence, const char* label,
                               FlightState state) {
  SeenOperation seen{.order = sequence, .sequence = sequence, .bytes = 24, .group_size = 2, .state = state};
  seen.op = op, seen.group = group, seen.label = label, seen.dtype = "fp32";
  seen.started_ago = 6;
  return seen;
}

/// A rank asleep in a collective.
inline RankSight waiting(std::int64_t number, Group group, std::uint64_t sequence, const char* op,
                         const char* label, std::int64_t node = 0) {
  RankSight sight = sight_of(number, node);
  sight.waits = group;
  sight.still.asleep = 6;
  sight.operations = {operation(op, info(group).name, sequence, label, FlightState::started)};
  return sight;
}

inline RankSight asleep(RankSight sight, double seconds = 6) {
  sight.still.asleep = seconds;
  return sight;
}

inline HangLimits limits() { return {.factor = 3, .minimum_seconds = 5, .threads = 2}; }

inline std::optional<HangVerdict> verdict(const std::vector<RankSight>& sights,
                                          const parallel::Layout& layout) {
  return core::run::judge(sights, layout, {}, limits());
}

}  // namespace trainerd::test::hang
