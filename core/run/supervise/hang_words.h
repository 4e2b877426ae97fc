#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/run/supervise/hang_limits.h"
#include "parallel/group/group.h"

// What verdicts on ranks have in common: words for what is seen of them.

namespace trainerd::core::run {

/// "2", "2 and 3", "36, 38, 39": as a list of numbers.
inline std::string numbers(const std::vector<std::int64_t>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}
inline std::string names(const std::vector<std::int64_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + numbers(ranks);
}

/// `reduce_scatter #812 'grad bucket 7'`
inline std::string describe(const SeenOperation& op) {
  return fmt::format("{} #{} '{}'", op.op, op.sequence, op.label);
}

inline const char* text_of(HangCause cause) {
  switch (cause) {
    case HangCause::stopped: return "stopped";
    case HangCause::asleep: return "asleep";
    case HangCause::spinning: return "spinning";
    case HangCause::disk: return "disk";
    case HangCause::data: break;
  }
  return "data";
}

inline std::string evidence(HangCause cause, const RankSight& sight) {
  switch (cause) {
    case HangCause::stopped: return "its process is stopped by a signal";
    case HangCause::asleep: return fmt::format("its process sleeps, for {:.1f} s", sight.still.asleep);
    case HangCause::spinning:
      return fmt::format("its process computes without progress, for {:.1f} s of CPU time",
                         sight.still.computing);
    case HangCause::disk:
      return fmt::format("its process waits for a disk or a device, for {:.1f} s", sight.still.disk);
    case HangCause::data: break;
  }
  return fmt::format("no data comes, for {:.1f} s", sight.still.asleep);
}

inline const SeenOperation* of_group(const RankSight& sight, parallel::Group group,
                                     parallel::FlightState state) {
  for (const SeenOperation& op : sight.operations)
    if (op.state == state && op.group == info(group).name && !op.exchange()) return &op;
  return nullptr;
}

inline bool has_entered(const RankSight& sight, const SeenOperation& op) {
  return std::ranges::any_of(sight.operations, [&](const SeenOperation& other) {
    return !other.exchange() && other.group == op.group && other.sequence >= op.sequence &&
           other.state != parallel::FlightState::enqueued;
  });
}

}  // namespace trainerd::core::run
