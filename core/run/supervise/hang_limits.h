#pragma once

#include <cstdint>
#include <optional>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// Why a rank counts as hung.
enum class HangCause : std::uint8_t {
  stopped,   ///< stopped by a signal
  asleep,    ///< its process sleeps
  spinning,  ///< it uses CPU time without progress
  disk,      ///< it is in an uninterruptible wait; only reported, as no signal ends that
  data,      ///< it gets no microbatch; only reported, as new workers would wait for the same data
};

/// What a rank waits for: nothing; a collective that all members have entered; ranks that have not entered,
/// or a message.
enum class Awaits : std::uint8_t { none, all_there, others };

/// Limits on the time without progress of a rank.
///
/// In a step: `factor` times the median of its latest steps or the longest of its latest activities of the
/// kind, whichever is more, and at least `minimum_seconds`. A first step, an evaluation, a snapshot, a wait
/// for data and what lies between two steps have at least 12 times the minimum, a load 60 times. A first step
/// is held against four times what the attempt before took, or the plan says; else against 20 times what its
/// FLOPs take at the device's peak. A wait for the agent, or for the members of a group before the first
/// step, has no limit.
///
/// Only time with the matching process state counts (StillTime). A sleeping rank must have slept for the
/// limit. A spinning rank must have been runnable for the limit and have used more CPU time than a working
/// rank does: in a step more than all its threads use in `factor` times the usual time, and at least a fifth
/// of the minimum limit, so that a rank with a fifth of a core is judged in time and one with less is not
/// accused; elsewhere the whole limit on all threads.
struct HangLimits {
  double factor = 3;  ///< 0: no rank is judged
  double minimum_seconds = 5;
  std::int64_t threads = 1;                         ///< number of threads of a rank
  std::optional<double> planned_step_seconds = {};  ///< set if the cluster has rates
  std::optional<double> peak_step_seconds = {};  ///< time of the step's FLOPs at the peak rate of all ranks

  bool on() const { return factor > 0; }
  /// Limit in seconds for sleep, and for runnable time. Infinite: no limit.
  double still_seconds(const RankSight& sight) const;
  /// Seconds of CPU time that a rank must use to count as spinning.
  double cpu_seconds(const RankSight& sight) const;
  double stop_seconds(const RankSight& sight) const;
  double disk_seconds(const RankSight& sight) const;

  std::optional<HangCause> cause(const RankSight& sight, Awaits awaits = Awaits::none) const;
  /// The limit that the cause has exceeded.
  double deadline_seconds(HangCause cause, const RankSight& sight) const;
  /// True if a rank has waited for others, or for its device, for longer than its limit.
  bool waits_too_long(const RankSight& sight) const;
  /// After how long it is told who is missed by ranks that wait, before the first step, for the members of a
  /// group to come: the minimum where a missing rank is idle, else 12 times as long.
  double meeting_seconds(bool idle) const;
  bool meets_too_long(const RankSight& sight) const;      ///< than the former
  bool meets_far_too_long(const RankSight& sight) const;  ///< than the latter
  /// Whether its process sleeps, or waits for a disk, for the minimum.
  bool idle(const RankSight& sight) const;
  /// Whether the ranks of all nodes are to be looked at because of this one.
  bool suspicious(const RankSight& sight) const;

 private:
  struct Allowance {
    double least_seconds = 0;  ///< lower bound
    double usual_seconds = 0;  ///< usual duration; 0: unknown
  };
  Allowance allowance(const RankSight& sight) const;
  double first_step_seconds(const RankSight& sight) const;
};

/// True if a slow file, rather than a defect, may make the rank sleep for long (StillClock::look).
bool patient(train::Activity activity);
/// True for activities of a step; false for an evaluation, a load, a snapshot and the work between steps.
bool in_step(train::Activity activity);

}  // namespace trainerd::core::run
