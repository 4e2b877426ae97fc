#pragma once

#include <cstdint>
#include <deque>

namespace trainerd::core::run {

/// When to stop a run with a time limit, so that its last steps and its last save end before the limit. Their
/// time is estimated as 1.5 times the sum of the steps until a vote takes effect, at the pace of the slowest
/// recent step, and the slowest save, plus 2 s for the processes to end.
class TimeLimit {
 public:
  struct Options {
    double deadline = 0;  ///< monotonic seconds
    std::int64_t vote_steps =
        2;  ///< most steps that end after the request: the current one, and the one with the vote
    double first_save_seconds = 0;  ///< estimate, until a save is measured
  };
  explicit TimeLimit(const Options& options) : options_(options) {}

  void add_step(double seconds);
  /// `seconds`: from the snapshot until the checkpoint is complete.
  void add_save(double seconds);
  /// Monotonic seconds. `saving`: a checkpoint is being written, and the last save must wait for it.
  double stop_at(bool saving) const;

 private:
  Options options_;
  std::deque<double> steps_;
  double save_seconds_ = -1;
};

}  // namespace trainerd::core::run
