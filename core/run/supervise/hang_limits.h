#pragma once

#include <cstdint>
#include <optional>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// Why a rank is taken to be hung.
enum class HangCause : std::uint8_t {
  stopped,   ///< by a signal
  asleep,    ///< its process sleeps
  spinning,  ///< it computes and comes to no end
  disk,      ///< it is in an uninterruptible wait; told alone, as no signal ends that
  data,      ///< no microbatch comes; told alone, as other workers would wait for the same
};

/// What a rank's progress depends on: itself alone; a collective that all members have entered; ranks that
/// have not come.
enum class Awaits : std::uint8_t { nobody, all_there, others };

/// How long a rank may make no progress.
///
/// In a step: `factor` times the median of its latest steps or the longest of its latest activities of the
/// kind, whichever is more, and at least `minimum_seconds`. A first step, whose time is not known, an
/// evaluation, a snapshot, a wait for data and what lies between two steps have at least 12 times the
/// minimum, a load 60 times. What counts is what the process did (StillTime): sleep for a process that
/// sleeps, CPU time for one that computes. CPU time is judged in a step whose usual time is known, and no
/// wait for the agent ever.
struct HangLimits {
  double factor = 3;  ///< 0: nothing is judged
  double minimum_seconds = 5;
  std::int64_t threads = 1;                         ///< that a rank computes with
  std::optional<double> planned_step_seconds = {};  ///< where the cluster has rates

  bool on() const { return factor > 0; }
  /// Seconds that a process may sleep. Infinite: no limit.
  double sleep_seconds(const RankSight& sight) const;
  double cpu_seconds(const RankSight& sight) const;
  double stop_seconds(const RankSight& sight) const;
  double disk_seconds(const RankSight& sight) const;

  std::optional<HangCause> cause(const RankSight& sight, Awaits awaits = Awaits::nobody) const;
  /// Whether a rank has waited for others, or for its device, for longer than its limit.
  bool waits_too_long(const RankSight& sight) const;
  /// Whether the ranks of all nodes are to be looked at because of this one.
  bool suspicious(const RankSight& sight) const;
};

/// Whether a slow file, and no defect, may let it sleep for long (StillClock::look).
bool patient(train::Activity activity);
/// Of a step, not of an evaluation, a load, a snapshot or what lies between.
bool in_step(train::Activity activity);

}  // namespace trainerd::core::run
