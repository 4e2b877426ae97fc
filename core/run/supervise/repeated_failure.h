#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// Whether a process sends it to itself by what it computes: what crashed so will do so again at the same
/// place. SIGKILL and the like come from outside.
inline bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT ||
         signal == SIGTRAP || signal == SIGSYS;
}

/// What a failed communication of ranks is called in FailureCause: in steps, and before the first step of an
/// attempt.
inline constexpr const char *kFailedCommunication = "a failed communication",
                            *kFailedStart = "a failed communication of ranks that start";

/// Why an attempt ended.
struct FailureCause {
  std::string what = {};  ///< "rank 1 by signal 9 (Killed)", "rank 1 by a hang (spinning)"; empty: another
  bool own = false;       ///< by what the ranks computed, and by nothing from outside
};

/// The device of a rank failed while it trained.
inline FailureCause failed_device(std::int64_t rank) {
  return {fmt::format("rank {} by a failure of its device", rank), true};
}

/// A failure, and how often it came at its place.
struct CountedFailure {
  FailureCause cause = {};
  std::int64_t step = 0;  ///< that was under way
  int times = 0;          ///< in this run of the job and earlier ones
  int earlier = 0;        ///< of these, in earlier ones

  /// A communication may fail this often at one place; then no scheduler is to start the job again.
  static constexpr int kMaxInAllRuns = 3;

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
    if (failure.step != step) failure = {};
    failure = {.cause = cause, .step = step, .times = failure.times + 1, .earlier = failure.earlier};
    return failure;
  }

  bool none() const { return last_.empty(); }
  /// Those that are counted now, for the next run of the job.
  std::vector<CountedFailure> counted() const {
    std::vector<CountedFailure> all;
    for (const auto& [what, failure] : last_) all.push_back(failure);
    return all;
  }
  /// Those that an earlier run of the job counted; `step` is done now. A failure at or before it is over.
  void restore(const std::vector<CountedFailure>& earlier, std::int64_t step) {
    for (const CountedFailure& failure : earlier)
      if (failure.step > step) {
        CountedFailure& counted = last_[failure.cause.what] = failure;
        counted.earlier = counted.times;
        furthest_ = std::max(furthest_, failure.step);
      }
  }

 private:
  std::map<std::string, CountedFailure> last_;  ///< by what the cause was
  std::int64_t furthest_ = -1;                  ///< step of a failure
};

}  // namespace trainerd::core::run
