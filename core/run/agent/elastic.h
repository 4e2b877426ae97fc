#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/run/agent/restart_budget.h"
#include "core/run/nodes/held_state.h"
#include "core/run/supervise/repeated_failure.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// A size that an elastic job goes on with.
struct JobSize {
  job::JobSpec job;
  std::string layout =
      {};  ///< that the planner has chosen (replan.h); empty: whole replicas of the job's own
};

/// The job on `nodes` of its nodes, or on as many fewer as hold whole replicas: dp is what they hold, and all
/// else, the global batch too, stays. None where that is less than `cluster.failures.min_replicas`, or no
/// valid job.
std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes);
/// The job on so many nodes with the layout that the leader has chosen, if any.
std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes, const std::string& layout);

/// The sizes of an elastic job, as its leader chooses them. With `cluster.failures.elastic.replan` a size
/// has any layout that fits, and takes all ranks of its nodes where there is one.
class JobSizes {
 public:
  /// `rates`: see `replanned`.
  explicit JobSizes(job::JobSpec whole, std::optional<parallel::Topology> rates = {})
      : whole_(std::move(whole)), rates_(std::move(rates)) {}

  /// On `nodes` of its nodes or the most below that it can go on with. None: with no number of them.
  std::optional<JobSize> on(std::int64_t nodes);
  /// On the fewest nodes that it goes on with; the whole job where there are no fewer.
  JobSize smallest();

 private:
  std::optional<JobSize> exactly_on(std::int64_t nodes);

  job::JobSpec whole_;
  std::optional<parallel::Topology> rates_;
  std::map<std::int64_t, std::optional<JobSize>> planned_;  ///< by nodes
};

/// What a run that changes its size keeps. Each size is a `Run` of its own, which goes on from a checkpoint.
struct RunSeries {
  const job::JobSpec& whole;  ///< with all of its nodes
  RestartBudget restarts;
  RepeatedFailure failures = {};
  JobSizes sizes{whole};
  bool first = true;                       ///< the next is the first
  std::optional<std::int64_t> nodes = {};  ///< of the next size; none: the run is over
  std::string layout = {};                 ///< likewise (JobSize)
  bool was_ready = false;                  ///< all ranks of some size were
  /// By step: the attempt that its folder will be. A host that was lost may still write to earlier ones.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< of the job's, as far as this agent knows
  bool lead_recorded = false;                 ///< that this agent has taken the lead over
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
  std::vector<HeldState> survived = {};    ///< in this agent's memory, of sizes and leads before the present
  bool from_disk = false;                  ///< the next run does not look at them
};

}  // namespace trainerd::core::run
