#pragma once

#include <cstdint>
#include <deque>

namespace trainerd::core::run {

/// When a run with a time limit is asked to stop, so that its last steps and its last save end before the
/// limit. The time for them is estimated from the run: 1.5 times the steps until a vote takes effect, at the
/// pace of the slowest of the latest steps, and the slowest save; and a few seconds for the end of the
/// processes.
class TimeLimit {
 public:
  struct Options {
    double deadline = 0;  ///< monotonic seconds
    std::int64_t vote_steps =
        2;  ///< that end after the request, at most: the one under way, and the one that carries the vote
    double first_save_seconds = 0;  ///< guess, until a save was measured
  };
  explicit TimeLimit(const Options& options) : options_(options) {}

  void add_step(double seconds);
  /// From the snapshot until the checkpoint is complete.
  void add_save(double seconds);
  /// Monotonic seconds. `saving`: a checkpoint is being written, and the last one waits for it.
  double stop_at(bool saving) const;

 private:
  Options options_;
  std::deque<double> steps_;
  double save_seconds_ = -1;
};

}  // namespace trainerd::core::run
