#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// What became of a job. `open`: it has not ended.
enum class JobStatus : std::uint8_t { open, done, failed, refused, stopped_early };
/// "done", "failed", "unfinished", ...
const char* name_of(JobStatus status);

/// What a job's own records say of it, up to a step.
struct JobRecord {
  std::int64_t step = 0;
  std::optional<double> loss;             ///< of that step
  std::optional<double> validation_loss;  ///< the last
  double tokens_per_second = 0;           ///< median of all steps; 0: none
};

/// A job with what became of it.
struct JobResult {
  JobStatus status = JobStatus::open;
  std::string reason = {};  ///< of one that failed or was refused
  JobRecord record = {};
};

/// For `last_step`: all that there are.
inline constexpr std::int64_t kAllSteps = std::numeric_limits<std::int64_t>::max();

/// Reads the records of an output directory up to step `last_step`. Throws SpecError when they cannot be
/// read.
JobRecord read_record(const std::string& directory, std::int64_t last_step);
/// Whether the run of the directory has done all its steps, and said so.
bool run_is_done(const std::string& directory, std::int64_t steps);
/// Why the run of the directory failed last, in one line; empty: its last word is another.
std::string failure_of(const std::string& directory);
/// What a job is compared by at a rung; nothing: its records have not come so far.
std::optional<double> metric_at(const std::string& directory, HalvingMetric metric, std::int64_t step);

/// One line for each job that has ended: results.jsonl.
std::string results_lines(const Sweep& sweep, const std::vector<JobResult>& results);
/// The table of all jobs, for people, and the best of them.
std::string results_table(const Sweep& sweep, const std::vector<JobResult>& results);
/// The job of the lowest validation loss, or where none was evaluated the lowest loss; of those that are
/// done.
std::optional<std::size_t> best_job(const std::vector<JobResult>& results);

}  // namespace trainerd::core::sweep
