#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// The state of a process in /proc at one moment.
struct ProcessLook {
  char state = 0;          ///< 'R', 'S', 'D', 'T', ...; 0: unknown
  double cpu_seconds = 0;  ///< CPU time of all its threads so far
  bool runnable = false;   ///< some thread runs, or would if it had a core
  bool traced = false;     ///< a debugger is attached
};

/// Measures what a process did while its rank's page did not change.
///
/// Time counts by what was done in it: a rank starved on a busy machine does not count as asleep, and one
/// that computes for long does not count as spinning, as CPU time is the same on any machine. Nothing counts
/// while the agent itself did not run (a gap between looks: it was stopped, or the machine suspended), nor
/// while a debugger is attached. At the first look there is no earlier CPU time to compare with, so only what
/// the process state shows counts, since the previous look or the last beat, whichever is later.
class StillClock {
 public:
  /// The time between two looks that are further apart does not count.
  static constexpr double kLongestGap = 1.0;

  struct Page {
    std::uint64_t beats = 0;
    double beat_at = 0;    ///< time of the last beat
    bool patient = false;  ///< sleep counts only since the process last used the CPU, for reads of slow files
  };
  /// `process` is called only if the beats have not changed since the previous look.
  template <class AskProcess>
  void look(double now, const Page& page, AskProcess&& process) {
    const double gap = last_look_ ? now - *last_look_ : 0;
    last_look_ = now;
    if (page.beats != beats_) return reset(page.beats);
    add(gap <= kLongestGap ? std::min(gap, now - page.beat_at) : 0, page.patient, process());
  }
  const StillTime& time() const { return time_; }
  char state() const { return before_ ? before_->state : '\0'; }

 private:
  void reset(std::uint64_t beats);
  void add(double seconds, bool patient, const ProcessLook& process);

  std::optional<double> last_look_;
  std::uint64_t beats_ = 0;
  std::optional<ProcessLook> before_;
  StillTime time_;
};

}  // namespace trainerd::core::run
