#pragma once

// Records of a run's ranks: state and memory.

#include <cstdint>
#include <optional>

namespace trainerd::io {

enum class RankState : std::uint8_t {
  starting,
  ready,     ///< waits for the other ranks
  training,  ///< all ranks were ready
  finished,
  dead,
};
inline constexpr int kRankStates = 5;
/// "starting", "ready", ...
constexpr const char* name_of(RankState state) {
  switch (state) {
    case RankState::starting: return "starting";
    case RankState::ready: return "ready";
    case RankState::training: return "training";
    case RankState::finished: return "finished";
    case RankState::dead: break;
  }
  return "dead";
}

/// The state of consecutive ranks on one node.
struct RankStateRecord {
  std::int64_t first = 0, count = 1;
  std::int64_t node = 0;
  RankState state = RankState::starting;
};

/// Memory of a step on one rank, reported by that rank's node.
struct RankMemoryRecord {
  std::int64_t rank = 0;
  std::int64_t planned_bytes = 0;
  std::optional<std::int64_t> used_bytes = {};  ///< maximum so far; none: not measured yet
};

}  // namespace trainerd::io
