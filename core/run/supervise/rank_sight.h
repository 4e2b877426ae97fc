#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/train/rank_page.h"
#include "parallel/comm/flight_recorder.h"

// What an agent sees of a rank, in a form that agents of other nodes understand: ages in place of times.

namespace trainerd::core::run {

/// An operation of a rank's ring.
struct SeenOperation {
  std::uint64_t order = 0, sequence = 0;
  std::int64_t bytes = 0;
  std::int64_t group_size = 1;
  parallel::FlightState state = parallel::FlightState::enqueued;
  std::string op = {}, group = {}, label = {}, dtype = {};
  double started_ago = 0;  ///< seconds; of one that has started
  double done_ago = 0;     ///< likewise

  bool exchange() const { return op == "exchange"; }
};

/// Seconds without progress by what the process did in them, as far as the agent saw it.
struct StillTime {
  double asleep = 0;     ///< no thread ran or could run
  double running = 0;    ///< some thread ran, or would have if it had had a core
  double computing = 0;  ///< CPU time of all threads
  double stopped = 0;    ///< by a signal
  double disk = 0;       ///< in an uninterruptible wait

  bool operator==(const StillTime&) const = default;
};

struct RankSight {
  std::int64_t rank = 0, node = 0;
  train::Activity activity = train::Activity::none;
  std::int64_t step = 0;
  int chunk = -1, microbatch = -1;                ///< -1: none
  std::optional<parallel::Group> waits = {};      ///< that its main thread waits in
  double activity_seconds = 0, beat_seconds = 0;  ///< since it began; since the last change of the page
  std::int64_t steps = 0;                         ///< done by its process
  double step_seconds = 0;                        ///< median of the latest (UsualTimes)
  double longest_seconds = 0;                     ///< of its latest activities of this kind (UsualTimes)
  StillTime still = {};                           ///< since that change
  char process_state = 0;                         ///< as /proc has it; 0: not looked for
  std::vector<SeenOperation> operations = {};     ///< oldest first
};

/// What a rank's page says of the usual times of its work. The processes of the next attempt are held against
/// it until they have times of their own.
struct UsualTimes {
  double step_seconds = 0;                                      ///< 0: unknown
  std::array<double, train::kActivities> longest_seconds = {};  ///< by activity; 0: unknown

  /// Those of the page, and `earlier` for what it has no times of. A first step may be slower than the steps
  /// before it, and its activities are the longer of both.
  static UsualTimes of(const train::RankPage& page, const UsualTimes& earlier);
};

/// "forward of microbatch 5 of step 12", with the chunk where a rank may have several.
std::string doing(const RankSight& sight);

/// "reduce_scatter #812 'gradients' of dp, under way", of the rank's latest; empty: it has made none.
std::string latest_operation(const RankSight& sight);

/// A page and a ring as they are at `now` (base::monotonic_seconds of this machine).
RankSight sight_of(const train::RankPage& page, std::span<const parallel::FlightRecord> ring, double now,
                   const UsualTimes& earlier = {});

nlohmann::json to_json(const RankSight& sight);
/// Throws nlohmann::json::exception.
RankSight sight_from(const nlohmann::json& json);

}  // namespace trainerd::core::run
