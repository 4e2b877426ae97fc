#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// True for signals that a process causes itself by what it computes: it would crash at the same place again.
/// SIGKILL and other signals come from outside.
inline bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT ||
         signal == SIGTRAP || signal == SIGSYS;
}

/// FailureCause::what for a failed communication of ranks: in steps, and before an attempt's first step.
inline constexpr const char *kFailedCommunication = "a failed communication",
                            *kFailedStart = "a failed communication of ranks that start";

/// Why an attempt ended.
struct FailureCause {
  std::string what = {};  ///< "rank 1 by signal 9 (Killed)", "rank 1 by a hang (spinning)"; empty: other
  bool own = false;       ///< caused by the ranks' own computation, not from outside
};

/// The cause of a device failure of a rank in training.
inline FailureCause failed_device(std::int64_t rank) {
  return {fmt::format("rank {} by a failure of its device", rank), true};
}

/// A failure, and how often it happened at its place.
struct CountedFailure {
  FailureCause cause = {};
  std::int64_t step = 0;  ///< the step under way
  int times = 0;          ///< in this run of the job and earlier ones
  int earlier = 0;        ///< those of `times` in earlier runs

  /// Maximum number of communication failures at one place. After that no scheduler may start the job again.
  static constexpr int kMaxInAllRuns = 3;

  /// Number of times at one place after which the workers do not start again.
  int most() const { return cause.own ? 2 : 3; }
  bool ends() const { return times >= most(); }
  /// One line with the count that decides about a restart; empty: the failure is not counted.
  std::string evidence() const {
    if (cause.what.empty()) return "";
    return fmt::format("{} in step {}: {} of {} times there{}", cause.what, step, times, most(),
                       cause.own ? "" : " without a new step in between");
  }
  /// Text for a failure that happened twice; the advice follows.
  std::string again() const {
    return fmt::format(
        "{} in step {} is what ended the attempt before too, so the workers do not start again: ", cause.what,
        step);
  }
  /// Text for a failure that ends the run.
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

/// Counts the failures of a run's workers by place: the same ranks, the same signal or kind of hang, and the
/// same step.
class RepeatedFailure {
 public:
  /// Adds a failure in `step`. A cause with `own` counts with all earlier ones at this place. Another cause
  /// counts only as long as no failure was in a later step.
  CountedFailure add(FailureCause cause, std::int64_t step) {
    if (step > furthest_) std::erase_if(last_, [](const auto& entry) { return !entry.second.cause.own; });
    furthest_ = std::max(furthest_, step);
    if (cause.what.empty()) return {.cause = {}, .step = step, .times = 1};
    CountedFailure& failure = last_[cause.what];
    if (failure.step != step) failure = {};
    failure = {.cause = cause, .step = step, .times = failure.times + 1, .earlier = failure.earlier};
    return failure;
  }

  bool none() const { return last_.empty(); }
  /// The present counts, for the next run of the job.
  std::vector<CountedFailure> counted() const {
    std::vector<CountedFailure> all;
    for (const auto& [what, failure] : last_) all.push_back(failure);
    return all;
  }
  /// Takes over an earlier run's counts; `step` is the last step done. Failures up to `step` are dropped.
  void restore(const std::vector<CountedFailure>& earlier, std::int64_t step) {
    for (const CountedFailure& failure : earlier)
      if (failure.step > step) {
        CountedFailure& counted = last_[failure.cause.what] = failure;
        counted.earlier = counted.times;
        furthest_ = std::max(furthest_, failure.step);
      }
  }

 private:
  std::map<std::string, CountedFailure> last_;  ///< by cause
  std::int64_t furthest_ = -1;                  ///< latest step with a failure
};

}  // namespace trainerd::core::run
