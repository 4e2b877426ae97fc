#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/plan/goodput/goodput.h"
#include "core/spec/failures.h"

namespace trainerd::core::plan {

/// Figures of a job's run from its plan, or from options.
struct RunFigures {
  std::optional<double> step_seconds = {};
  std::optional<double> checkpoint_bytes = {};  ///< of all ranks
  std::optional<double> save_seconds = {};      ///< checkpoint stall of a save
};

/// The failures of the job's cluster, with "cluster.failures.KEY=VALUE" over them. Throws SpecError.
spec::FailureSpec job_failures(const job::JobSpec& job, const std::vector<std::string>& overrides);

/// The job among its cluster's failures: one lost node takes its replicas with it, whose other nodes stand in
/// for the next. The cadence of storage is the job's `checkpoint.every`, a duration rounded
/// to steps, or the optimum when that is 0. Throws SpecError with everything that is missing.
FailureScenario failure_scenario(const job::JobSpec& job, const spec::FailureSpec& spec,
                                 const RunFigures& figures);

}  // namespace trainerd::core::plan
