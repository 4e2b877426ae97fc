#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/sweep/outcome.h"
#include "core/sweep/runner.h"
#include "core/sweep/sweep.h"
#include "kernels/base/fd.h"

namespace trainerd::core::sweep {

struct SweepEnd {
  std::vector<JobResult> results;  ///< of each job
  int failed_status = 0;           ///< exit status of the first job that failed; 0: none did, 1: not known
  std::optional<run::StopRequest> stop = {};  ///< that ended the sweep before its jobs
};

/// Says what happens, line by line.
using SayLine = std::function<void(const std::string&)>;

/// A sweep's output directory, held by one process at a time: jobs/NAME.yaml, NAME.log and NAME/ of each job,
/// results.jsonl, results.html.
class SweepDirectory {
 public:
  /// Makes it and locks it. Throws SpecError when it cannot be written, or another process has it.
  explicit SweepDirectory(const Sweep& sweep);
  /// Writes the jobs' files. A job that an earlier process of the sweep has begun keeps its own: throws
  /// SpecError where the sweep gives it other keys now, but for the address of its metrics. The number of
  /// threads stays what it was.
  void write_jobs(Sweep& sweep) const;

 private:
  base::UniqueFd lock_;
};

/// Runs every job that is not refused and not done, phase by phase where there is halving, and keeps
/// results.jsonl and results.html up to date. What was reached before is taken from the jobs' own records: a
/// sweep goes on after any end.
SweepEnd run_sweep(const Sweep& sweep, JobRunner& runner, const SayLine& say);

}  // namespace trainerd::core::sweep
