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
  disk,      ///< it is in an uninterruptible wait; only reported, as no signal ends that
  data,      ///< no microbatch comes; only reported, as new workers would wait for the same
};

/// What a rank's progress depends on: itself alone; a collective that all members have entered; ranks that
/// have not come.
enum class Awaits : std::uint8_t { none, all_there, others };

/// How long a rank may make no progress.
///
/// In a step: `factor` times the median of its latest steps or the longest of its latest activities of the
/// kind, whichever is more, and at least `minimum_seconds`. A first step, an evaluation, a snapshot, a wait
/// for data and what lies between two steps have at least 12 times the minimum, a load 60 times. A first step
/// is held against four times what the attempt before took, or the plan says; else against 20 times what its
/// FLOPs take at the device's peak. A wait for the agent, or for the members of a group before the first
/// step, has no limit.
///
/// What counts is what the process did (StillTime). One that sleeps has slept for so long. One that spins was
/// able to run for so long, and used CPU time that a rank at work does not: in a step more than all its
/// threads use in `factor` times the usual time, and at least a fifth of the least limit, so that a rank that
/// gets a fifth of a core is judged in time and one that gets less is not accused; elsewhere the whole limit
/// of all threads.
struct HangLimits {
  double factor = 3;  ///< 0: nothing is judged
  double minimum_seconds = 5;
  std::int64_t threads = 1;                         ///< that a rank computes with
  std::optional<double> planned_step_seconds = {};  ///< where the cluster has rates
  std::optional<double> peak_step_seconds = {};     ///< of the step's FLOPs at the peak of all ranks

  bool on() const { return factor > 0; }
  /// Seconds of sleep, or of time in which it could run. Infinite: no limit.
  double still_seconds(const RankSight& sight) const;
  /// Seconds of CPU time, without which no rank spins.
  double cpu_seconds(const RankSight& sight) const;
  double stop_seconds(const RankSight& sight) const;
  double disk_seconds(const RankSight& sight) const;

  std::optional<HangCause> cause(const RankSight& sight, Awaits awaits = Awaits::none) const;
  /// After how much time of its kind the cause is one.
  double deadline_seconds(HangCause cause, const RankSight& sight) const;
  /// Whether a rank has waited for others, or for its device, for longer than its limit.
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
    double least_seconds = 0;  ///< whatever is usual
    double usual_seconds = 0;  ///< what it usually takes at most; 0: unknown
  };
  Allowance allowance(const RankSight& sight) const;
  double first_step_seconds(const RankSight& sight) const;
};

/// Whether a slow file, and no defect, may let it sleep for long (StillClock::look).
bool patient(train::Activity activity);
/// Of a step, not of an evaluation, a load, a snapshot or what lies between.
bool in_step(train::Activity activity);

}  // namespace trainerd::core::run
