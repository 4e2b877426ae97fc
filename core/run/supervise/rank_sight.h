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

// An agent's view of a rank, in a form that other nodes' agents can use: ages instead of times.

namespace trainerd::core::run {

/// An operation in a rank's ring.
struct SeenOperation {
  std::uint64_t order = 0, sequence = 0;
  std::int64_t bytes = 0;
  std::int64_t group_size = 1;
  parallel::FlightState state = parallel::FlightState::enqueued;
  std::string op = {}, group = {}, label = {}, dtype = {};
  double started_ago = 0;  ///< seconds; if it has started
  double done_ago = 0;     ///< seconds; if it is done

  bool exchange() const { return op == "exchange"; }
};

/// Seconds without progress, by what the process did in that time, as far as the agent saw it.
struct StillTime {
  double asleep = 0;     ///< no thread ran or could run
  double running = 0;    ///< some thread ran, or would have if it had had a core
  double computing = 0;  ///< CPU time of all threads
  double stopped = 0;    ///< stopped by a signal
  double disk = 0;       ///< in an uninterruptible wait

  bool operator==(const StillTime&) const = default;
};

struct RankSight {
  std::int64_t rank = 0, node = 0;
  train::Activity activity = train::Activity::none;
  std::int64_t step = 0;
  int chunk = -1, microbatch = -1;                ///< -1: none
  std::optional<parallel::Group> waits = {};      ///< the group that its main thread waits in
  double activity_seconds = 0, beat_seconds = 0;  ///< since its begin; since the page's last change
  std::int64_t steps = 0;                         ///< number done by its process
  double step_seconds = 0;                        ///< median of the latest steps (UsualTimes)
  double longest_seconds = 0;                  ///< longest of its latest activities of this kind (UsualTimes)
  StillTime still = {};                        ///< since the last change of the page
  char process_state = 0;                      ///< letter from /proc; 0: not read
  std::vector<SeenOperation> operations = {};  ///< oldest first
};

/// Usual times of a rank's work, from its page. The next attempt's processes are compared with them until
/// they have times of their own.
struct UsualTimes {
  double step_seconds = 0;                                      ///< 0: unknown
  std::array<double, train::kActivities> longest_seconds = {};  ///< by activity; 0: unknown

  /// The times of the page; `earlier` for those that it lacks. Before the first step is done, the longer of
  /// both is used for activities, because a first step may be slower.
  static UsualTimes of(const train::RankPage& page, const UsualTimes& earlier);
};

/// "forward of microbatch 5 of step 12", with the chunk if it is not the first.
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
