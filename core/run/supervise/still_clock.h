#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// What /proc says of a process at one moment.
struct ProcessLook {
  char state = 0;          ///< 'R', 'S', 'D', 'T', ...; 0: unknown
  double cpu_seconds = 0;  ///< of all its threads, so far
  bool runnable = false;   ///< some thread runs, or would if it had a core
  bool traced = false;     ///< by a debugger
};

/// Adds up what a process did while its rank's page did not change.
///
/// Time counts by what was done in it, so that a rank that a loaded machine starves is not taken for one that
/// sleeps, nor one that computes for long for one that spins: CPU time is what it is on any machine. Nothing
/// counts over a gap between two looks, in which the agent itself did not run (it was stopped, the machine
/// was suspended), and nothing while a debugger holds the process. The first look at a process has nothing to
/// compare CPU time with: what its state shows by itself counts since the look before, or since the last beat
/// if that is later.
class StillClock {
 public:
  /// Two looks that are further apart say nothing of the time between.
  static constexpr double kLongestGap = 1.0;

  struct Page {
    std::uint64_t beats = 0;
    double beat_at = 0;  ///< of the last one
    bool patient =
        false;  ///< sleep counts since the process last used the CPU, as of one that reads slow files
  };
  /// `process` is asked for when the beats are those of the look before.
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
