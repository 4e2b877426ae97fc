#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/run/agent/restart_budget.h"
#include "core/run/supervise/repeated_crash.h"

namespace trainerd::core::run {

/// The job on `nodes` of its nodes, or on as many fewer as hold whole replicas: dp is what they hold, and all
/// else, the global batch too, stays. None where that is less than `cluster.failures.min_replicas`, or no
/// valid job.
std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes);

/// An elastic job on the fewest nodes that it goes on with.
job::JobSpec smallest_job(const job::JobSpec& whole);

/// What a run that changes its size keeps. Each size is a `Run` of its own, which goes on from a checkpoint.
struct RunSeries {
  const job::JobSpec& whole;  ///< with all of its nodes
  RestartBudget restarts;
  RepeatedCrash crashes = {};
  bool first = true;                       ///< the next is the first
  std::optional<std::int64_t> nodes = {};  ///< of the next size; none: the run is over
  bool was_ready = false;                  ///< all ranks of some size were
  /// By step: the attempt that its folder will be. A host that was lost may still write to earlier ones.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< of the job's, as far as this agent knows
  bool lead_told = false;                     ///< that this agent has taken the lead over
  // Of supervise.spikes. A run that goes back is a `Run` of its own too.
  std::vector<std::int64_t> spikes_used = {};  ///< see SpikeHistory
  struct Judged {
    std::int64_t step = 0;
    double loss = 0, grad_norm = 0;
  };
  std::deque<Judged> judged = {};  ///< the latest steps that were updated
  /// Samples that a rollback passed over: those of the step after `step` begin at `cursor`.
  struct PassedOver {
    std::int64_t step = 0, cursor = 0;
  };
  std::optional<PassedOver> passed_over = {};  ///< last; in a file beside the checkpoints too
  std::optional<std::int64_t> returns_to =
      {};  ///< the step that the next run begins after, of one that goes back
  std::vector<std::vector<std::int64_t>> corruptions = {};  ///< the ranks of each, for the counts
  struct WentBack {
    std::int64_t from = 0, to = 0;  ///< steps
  };
  std::optional<WentBack> went_back = {};  ///< last
};

}  // namespace trainerd::core::run
