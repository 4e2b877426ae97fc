#pragma once

// Records of a run's ranks: state and memory.

#include <cstdint>
#include <optional>
#include <string>

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

/// What one rank does at the moment, about once a second.
struct RankDoingRecord {
  std::int64_t rank = 0;
  std::string doing = {};  ///< "forward of microbatch 5 of step 12"
  std::string last = {};   ///< its latest collective: "reduce_scatter #812 'gradients' of dp, under way"
  double seconds = 0;      ///< since its last progress, as of then

  bool operator==(const RankDoingRecord&) const = default;
};

/// The memory that a step takes on one rank, reported by that rank's node.
struct RankMemoryRecord {
  std::int64_t rank = 0;
  std::int64_t planned_bytes = 0;
  std::optional<std::int64_t> used_bytes = {};  ///< maximum so far; none: not measured yet
};

}  // namespace trainerd::io
