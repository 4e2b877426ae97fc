#include "core/run/supervise/hang_limits.h"

#include <algorithm>
#include <limits>

namespace trainerd::core::run {
namespace {

using train::Activity;

constexpr double kUnknown = 12;  // times the minimum, without a usual time
constexpr double kLoad = 60;
// Slack of the plan's or previous attempt's time for a first step, in addition to the factor.
constexpr double kPlanSlack = 4;
// A working rank reaches at least 1/20 of the peak FLOP/s; with a factor of 3, a limit of 60 times.
constexpr double kPeakSlack = 20;
// Minimum share of a core that a spinning rank gets.
constexpr double kMinShare = 0.2;
constexpr double kNever = std::numeric_limits<double>::infinity();

double usual_seconds(const RankSight& sight) { return std::max(sight.step_seconds, sight.longest_seconds); }

}  // namespace

bool in_step(Activity activity) {
  switch (activity) {
    case Activity::forward:
    case Activity::backward:
    case Activity::reduce_grads:
    case Activity::optimizer:
    case Activity::report: return true;
    default: return false;
  }
}

bool patient(Activity activity) {
  return activity == Activity::load || activity == Activity::evaluation || activity == Activity::data_wait;
}

/// Expected time of a first step; 0: unknown.
double HangLimits::first_step_seconds(const RankSight& sight) const {
  const double known = std::max(planned_step_seconds.value_or(0), usual_seconds(sight));
  return sight.step_seconds > 0 || planned_step_seconds ? kPlanSlack * known
                                                        : kPeakSlack * peak_step_seconds.value_or(0);
}

HangLimits::Allowance HangLimits::allowance(const RankSight& sight) const {
  const bool first = sight.steps == 0;
  switch (sight.activity) {
    case Activity::agent_wait:
    case Activity::meet:
    case Activity::done: return {kNever, 0};
    case Activity::none:
    case Activity::load: return {kLoad * minimum_seconds, 0};
    default: break;
  }
  if (in_step(sight.activity))
    return first ? Allowance{kUnknown * minimum_seconds, first_step_seconds(sight)}
                 : Allowance{minimum_seconds, usual_seconds(sight)};
  return {kUnknown * minimum_seconds, std::max(usual_seconds(sight), first ? first_step_seconds(sight) : 0)};
}

double HangLimits::still_seconds(const RankSight& sight) const {
  const Allowance allowed = allowance(sight);
  return std::max(allowed.least_seconds, factor * allowed.usual_seconds);
}

double HangLimits::cpu_seconds(const RankSight& sight) const {
  const Allowance allowed = allowance(sight);
  const auto cores = static_cast<double>(threads);
  if (!in_step(sight.activity)) return cores * still_seconds(sight);
  if (allowed.usual_seconds <= 0) return kNever;
  return std::max(kMinShare * allowed.least_seconds, cores * factor * allowed.usual_seconds);
}

double HangLimits::stop_seconds(const RankSight& sight) const {
  if (sight.activity == Activity::done) return kNever;
  return std::max(minimum_seconds, factor * sight.step_seconds);
}

double HangLimits::disk_seconds(const RankSight& sight) const {
  return std::max(kUnknown * minimum_seconds, factor * usual_seconds(sight));
}

std::optional<HangCause> HangLimits::cause(const RankSight& sight, Awaits awaits) const {
  if (!on()) return std::nullopt;
  const StillTime& still = sight.still;
  if (still.stopped >= stop_seconds(sight)) return HangCause::stopped;
  if (still.disk >= disk_seconds(sight)) return HangCause::disk;
  // Before its page shows an activity, a rank may wait for ranks of other nodes.
  if (awaits == Awaits::none && sight.activity != Activity::none && still.asleep >= still_seconds(sight))
    return sight.activity == Activity::data_wait ? HangCause::data : HangCause::asleep;
  // A host may poll its device.
  const bool polls = awaits != Awaits::none && sight.activity == Activity::report;
  if (awaits != Awaits::others && !polls && still.running >= still_seconds(sight) &&
      still.computing >= cpu_seconds(sight))
    return HangCause::spinning;
  return std::nullopt;
}

double HangLimits::deadline_seconds(HangCause cause, const RankSight& sight) const {
  switch (cause) {
    case HangCause::stopped: return stop_seconds(sight);
    case HangCause::disk: return disk_seconds(sight);
    case HangCause::spinning: return std::max(still_seconds(sight), cpu_seconds(sight));
    case HangCause::asleep:
    case HangCause::data: break;
  }
  return still_seconds(sight);
}

bool HangLimits::waits_too_long(const RankSight& sight) const {
  // A host that waits for a device may poll it.
  const double quiet = sight.still.asleep + (sight.activity == Activity::report ? sight.still.running : 0);
  return on() && sight.activity != Activity::none && quiet >= still_seconds(sight);
}

double HangLimits::meeting_seconds(bool idle) const { return (idle ? 1 : kUnknown) * minimum_seconds; }

bool HangLimits::meets_too_long(const RankSight& sight) const {
  // The first step, and the one before it, may begin before all are there.
  const bool first = sight.steps == 0 && in_step(sight.activity);
  const bool meets = sight.activity == Activity::meet || sight.activity == Activity::load || first;
  return on() && meets && sight.waits && sight.beat_seconds >= meeting_seconds(true);
}

bool HangLimits::meets_far_too_long(const RankSight& sight) const {
  return meets_too_long(sight) && sight.beat_seconds >= meeting_seconds(false);
}

bool HangLimits::idle(const RankSight& sight) const {
  return sight.still.asleep >= minimum_seconds || sight.still.disk >= minimum_seconds;
}

bool HangLimits::suspicious(const RankSight& sight) const {
  return cause(sight) || waits_too_long(sight) || meets_too_long(sight);
}

}  // namespace trainerd::core::run
