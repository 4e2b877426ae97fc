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
  std::vector<JobResult> results;  ///< by job
  int failed_status = 0;           ///< exit status of the first failed job; 0: none failed, 1: unknown
  std::optional<run::StopRequest> stop = {};  ///< the request that ended the sweep early
};

/// Reports progress, line by line.
using SayLine = std::function<void(const std::string&)>;

/// A sweep's output directory, locked by one process at a time: jobs/NAME.yaml, NAME.log and NAME/ of each
/// job, results.jsonl, results.html.
class SweepDirectory {
 public:
  /// Creates and locks it. Throws SpecError if it cannot be written or another process holds it.
  explicit SweepDirectory(const Sweep& sweep);
  /// Writes the jobs' files. A job that an earlier process of the sweep has begun keeps its number of
  /// threads. Throws SpecError if the sweep now gives it other keys, except the address of its metrics.
  void write_jobs(Sweep& sweep) const;

 private:
  base::UniqueFd lock_;
};

/// Runs every job that is neither refused nor done, phase by phase with halving, and keeps results.jsonl and
/// results.html up to date. Earlier progress is read from the jobs' own records, so a sweep can continue
/// after any kind of end.
SweepEnd run_sweep(const Sweep& sweep, JobRunner& runner, const SayLine& say);

}  // namespace trainerd::core::sweep
