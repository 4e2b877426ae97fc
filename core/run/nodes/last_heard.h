#pragma once

#include <atomic>
#include <utility>

#include "core/run/nodes/beat_watch.h"

namespace trainerd::core::run {

/// Whether the one peer of a process was heard of lately, by the process' own clock (Heartbeats::counted_on).
/// `heard` is called by one thread, the rest by any.
class LastHeard {
 public:
  explicit LastHeard(const BeatOptions& options) : options_(options) {}

  /// A beat has come. After a silence of `dead_seconds` one that follows it at once may have been sent before
  /// the silence, as what came while the process was stopped.
  void heard(double now) {
    const double since = now - std::exchange(received_at_, now);
    if (!recent(now)) {
      if (since >= options_.dead_seconds) settles_at_ = now + options_.every_seconds / 2;
      if (now < settles_at_) return;
    }
    heard_at_ = now;
  }
  /// Within `dead_seconds`; true before the first beat.
  bool recent(double now) const {
    const double at = heard_at_;
    return ended_ || at < 0 || now - at < options_.dead_seconds;
  }
  /// The peer has ended: its silence says nothing.
  void end() { ended_ = true; }

 private:
  static constexpr double kNever = -1;
  const BeatOptions options_;
  std::atomic<double> heard_at_{kNever};
  std::atomic<bool> ended_{false};
  double received_at_ = kNever, settles_at_ = 0;
};

}  // namespace trainerd::core::run
