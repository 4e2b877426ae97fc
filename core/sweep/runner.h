#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/run/stop/stop.h"

namespace trainerd::core::sweep {

/// Runs jobs of a sweep to their end, or to a step.
class JobRunner {
 public:
  /// `status` is the exit status, or 128 + the signal that ended the agent; nothing if unknown.
  using OnEnd = std::function<void(std::size_t job, std::optional<int> status)>;

  JobRunner() = default;
  virtual ~JobRunner() = default;
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

  /// Waits until no earlier process of the sweep runs a job of it. `jobs` are the jobs to run.
  virtual void await_earlier(const std::vector<std::size_t>& jobs) = 0;
  /// Runs `jobs` until each has ended; with `stop_after` they stop after that step. Calls `on_end` for each,
  /// in the order of their ends.
  virtual void run(const std::vector<std::size_t>& jobs, std::optional<std::int64_t> stop_after,
                   const OnEnd& on_end) = 0;
  /// The stop requested meanwhile: running jobs have saved, and no other job begins.
  const std::optional<run::StopRequest>& stop() const { return stop_; }

 protected:
  std::optional<run::StopRequest> stop_;
};

}  // namespace trainerd::core::sweep
