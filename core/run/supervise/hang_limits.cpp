#include "core/run/supervise/hang_limits.h"

#include <algorithm>
#include <limits>

namespace trainerd::core::run {
namespace {

using train::Activity;

constexpr double kUnknown = 12;  // times the minimum, of what has no usual time
constexpr double kLoad = 60;
// A plan is no measurement: a first step may take so many times as long, beside what the factor allows.
constexpr double kPlanSlack = 4;
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

double HangLimits::sleep_seconds(const RankSight& sight) const {
  switch (sight.activity) {
    case Activity::none:
    case Activity::agent_wait:
    case Activity::done: return kNever;
    case Activity::load: return kLoad * minimum_seconds;
    default: break;
  }
  if (sight.steps == 0)
    return std::max(kUnknown * minimum_seconds, kPlanSlack * factor * planned_step_seconds.value_or(0));
  const double least = in_step(sight.activity) ? minimum_seconds : kUnknown * minimum_seconds;
  return std::max(least, factor * usual_seconds(sight));
}

double HangLimits::cpu_seconds(const RankSight& sight) const {
  if (!in_step(sight.activity)) return kNever;
  const auto cores = static_cast<double>(threads);
  if (sight.steps > 0) return std::max(minimum_seconds, cores * factor * usual_seconds(sight));
  if (!planned_step_seconds) return kNever;
  return std::max(kUnknown * minimum_seconds, cores * kPlanSlack * factor * *planned_step_seconds);
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
  if (awaits == Awaits::nobody && still.asleep >= sleep_seconds(sight))
    return sight.activity == Activity::data_wait ? HangCause::data : HangCause::asleep;
  // A host may poll its device.
  const bool polls = awaits != Awaits::nobody && sight.activity == Activity::report;
  if (awaits != Awaits::others && !polls && still.computing >= cpu_seconds(sight)) return HangCause::spinning;
  return std::nullopt;
}

bool HangLimits::waits_too_long(const RankSight& sight) const {
  // A host that waits for a device may poll it.
  const double quiet = sight.still.asleep + (sight.activity == Activity::report ? sight.still.computing : 0);
  return on() && quiet >= sleep_seconds(sight);
}

bool HangLimits::suspicious(const RankSight& sight) const { return cause(sight) || waits_too_long(sight); }

}  // namespace trainerd::core::run
