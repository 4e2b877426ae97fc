#pragma once

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
/// was suspended), and nothing while a debugger holds the process.
class StillClock {
 public:
  /// Two looks that are further apart say nothing of the time between.
  static constexpr double kLongestGap = 1.0;

  /// `beats` as the page has them. `process` is asked for when they are those of the look before.
  template <class AskProcess>
  void look(double now, std::uint64_t beats, bool patient, AskProcess&& process) {
    const double gap = last_look_ ? now - *last_look_ : 0;
    last_look_ = now;
    if (beats != beats_) return reset(beats);
    add(gap <= kLongestGap ? gap : 0, patient, process());
  }
  const StillTime& time() const { return time_; }
  char state() const { return before_ ? before_->state : '\0'; }

 private:
  void reset(std::uint64_t beats);
  /// `patient`: sleep counts since the process last used the CPU at all, as of one that reads slow files.
  void add(double seconds, bool patient, const ProcessLook& process);

  std::optional<double> last_look_;
  std::uint64_t beats_ = 0;
  std::optional<ProcessLook> before_;
  StillTime time_;
};

}  // namespace trainerd::core::run
