#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Result of a job. `open`: it has not ended.
enum class JobStatus : std::uint8_t { open, done, failed, refused, stopped_early };
/// "done", "failed", "unfinished", ...
const char* name_of(JobStatus status);

/// Summary of a job's own records up to a step.
struct JobRecord {
  std::int64_t step = 0;
  std::optional<double> loss;             ///< loss at that step
  std::optional<double> validation_loss;  ///< last validation loss
  double tokens_per_second = 0;           ///< median over all steps; 0: none
};

/// A job's result.
struct JobResult {
  JobStatus status = JobStatus::open;
  std::string reason = {};  ///< why it failed or was refused
  JobRecord record = {};
};

/// Value of `last_step` for all steps.
inline constexpr std::int64_t kAllSteps = std::numeric_limits<std::int64_t>::max();

/// Reads the records of an output directory up to step `last_step`. Throws SpecError if they cannot be read.
JobRecord read_record(const std::string& directory, std::int64_t last_step);
/// True if the directory's run has recorded that all its steps are done.
bool run_is_done(const std::string& directory, std::int64_t steps);
/// Why the directory's run failed last, in one line; empty if its last record is not a failure.
std::string failure_of(const std::string& directory);
/// A job's metric at a rung; nothing if its records do not reach that step.
std::optional<double> metric_at(const std::string& directory, HalvingMetric metric, std::int64_t step);

/// results.jsonl: one line for each job that has ended.
std::string results_lines(const Sweep& sweep, const std::vector<JobResult>& results);
/// A human-readable table of all jobs, and the best job.
std::string results_table(const Sweep& sweep, const std::vector<JobResult>& results);
/// Among completed jobs, the one with the lowest validation loss, or if none was evaluated, with the lowest
/// loss.
std::optional<std::size_t> best_job(const std::vector<JobResult>& results);

}  // namespace trainerd::core::sweep
