#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "core/job/job.h"

namespace trainerd::core::run {

/// Limits the restarts of a run's workers to `restarts` within any kRestartSeconds.
class RestartBudget {
 public:
  explicit RestartBudget(std::int64_t restarts) : restarts_(restarts) {}

  /// Takes one restart at `now` (monotonic seconds). Returns false and takes nothing if none is left.
  bool take(double now) {
    while (!taken_.empty() && now - taken_.front() > job::kRestartSeconds) taken_.pop_front();
    if (std::cmp_greater_equal(taken_.size(), restarts_)) return false;
    taken_.push_back(now);
    return true;
  }
  /// Number of restarts within the last kRestartSeconds, as of the last call of `take`.
  std::int64_t taken() const { return static_cast<std::int64_t>(taken_.size()); }

 private:
  std::int64_t restarts_;
  std::deque<double> taken_;
};

}  // namespace trainerd::core::run
