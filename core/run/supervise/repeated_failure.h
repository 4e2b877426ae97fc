#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>

namespace trainerd::core::run {

/// Whether a process sends it to itself by what it computes: what crashed so will do so again at the same
/// place. SIGKILL and the like come from outside.
inline bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT ||
         signal == SIGTRAP || signal == SIGSYS;
}

/// Why an attempt ended.
struct FailureCause {
  std::string what = {};  ///< "rank 1 by signal 9 (Killed)", "rank 1 by a hang (spinning)"; empty: another
  bool own = false;       ///< by what the ranks computed, and by nothing from outside
};

/// A failure, and how often it came at its place.
struct CountedFailure {
  FailureCause cause = {};
  std::int64_t step = 0;  ///< that was under way
  int times = 0;

  /// After so many times at one place the workers do not start again.
  int most() const { return cause.own ? 2 : 3; }
  bool ends() const { return times >= most(); }
  /// One line of what a decision to start again, or not to, goes by; empty: the place is unknown.
  std::string evidence() const {
    if (cause.what.empty()) return "";
    return fmt::format("{} in step {}: {} of {} times there{}", cause.what, step, times, most(),
                       cause.own ? "" : " without a new step in between");
  }
  /// The text of a failure that came twice; the advice follows.
  std::string again() const {
    return fmt::format(
        "{} in step {} is what ended the attempt before too, so the workers do not start again: ", cause.what,
        step);
  }
  /// The text of a failure that ends the run.
  std::string reason() const {
    if (cause.own)
      return again() + "it is a bug, or hardware that computes wrongly; try the step on other hardware";
    const std::string place = fmt::format("{} in step {}", cause.what, step);
    return fmt::format(
        "{} has ended {} attempts without a new step in between, so the workers do not start again: look for "
        "what does that there, for example a limit of memory",
        place, times);
  }
};

/// The failures of a run's workers by place: the same ranks by the same signal or the same kind of hang, in
/// the same step.
class RepeatedFailure {
 public:
  /// `step`: under way. A failure of its own that was at this place before counts, whatever came between;
  /// another one as long as no failure was in a later step.
  CountedFailure add(FailureCause cause, std::int64_t step) {
    if (step > furthest_) std::erase_if(last_, [](const auto& entry) { return !entry.second.cause.own; });
    furthest_ = std::max(furthest_, step);
    if (cause.what.empty()) return {.cause = {}, .step = step, .times = 1};
    CountedFailure& failure = last_[cause.what];
    if (failure.step != step) failure.times = 0;
    failure = {.cause = cause, .step = step, .times = failure.times + 1};
    return failure;
  }

 private:
  std::map<std::string, CountedFailure> last_;  ///< by what the cause was
  std::int64_t furthest_ = -1;                  ///< step of a failure
};

}  // namespace trainerd::core::run
