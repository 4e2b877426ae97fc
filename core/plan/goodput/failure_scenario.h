#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/plan/goodput/goodput.h"
#include "core/spec/failures.h"

namespace trainerd::core::plan {

/// Figures of a job's run, from its plan or from options.
struct RunFigures {
  std::optional<double> step_seconds = {};
  std::optional<double> checkpoint_bytes = {};  ///< of all ranks
  std::optional<double> save_seconds = {};      ///< checkpoint stall per save
};

/// Failure rates of the job's cluster, with overrides of the form "cluster.failures.KEY=VALUE". Throws
/// SpecError.
spec::FailureSpec job_failures(const job::JobSpec& job, const std::vector<std::string>& overrides);

/// The failure scenario of a job on its cluster. A lost node takes its replicas with it; the other nodes of
/// those replicas replace the next lost ones. The interval of saves to storage is the job's
/// `checkpoint.every`, with a duration rounded to steps, or the optimum if that is 0. Throws SpecError that
/// lists everything missing.
FailureScenario failure_scenario(const job::JobSpec& job, const spec::FailureSpec& spec,
                                 const RunFigures& figures);

}  // namespace trainerd::core::plan
