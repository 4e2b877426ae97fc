#pragma once

#include <atomic>
#include <utility>

#include "core/run/nodes/beat_watch.h"

namespace trainerd::core::run {

/// Whether a process' only peer sent a beat recently, by the process' own clock (Heartbeats::counted_on). One
/// thread calls `on_beat`; any thread may call the rest.
class LastBeat {
 public:
  explicit LastBeat(const BeatOptions& options) : options_(options) {}

  /// Records a beat. After a silence of `dead_seconds`, beats that follow at once may be old ones that
  /// arrived while the process was stopped; they do not count.
  void on_beat(double now) {
    const double since = now - std::exchange(received_at_, now);
    if (!recent(now)) {
      if (since >= options_.dead_seconds) settles_at_ = now + options_.every_seconds / 2;
      if (now < settles_at_) return;
    }
    counted_at_ = now;
  }
  /// True if a beat counted within `dead_seconds`, and before the first beat.
  bool recent(double now) const {
    const double at = counted_at_;
    return ended_ || at < 0 || now - at < options_.dead_seconds;
  }
  /// The peer has ended normally, so its silence does not count.
  void end() { ended_ = true; }

 private:
  static constexpr double kNever = -1;
  const BeatOptions options_;
  std::atomic<double> counted_at_{kNever};
  std::atomic<bool> ended_{false};
  double received_at_ = kNever, settles_at_ = 0;
};

}  // namespace trainerd::core::run
