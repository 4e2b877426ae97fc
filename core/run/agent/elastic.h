#pragma once

#include <cstdint>
#include <deque>
#include <limits>
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

/// A size (number of nodes and layout) at which an elastic job can run.
struct JobSize {
  job::JobSpec job;
  std::string layout = {};  ///< chosen by the planner (replan.h); empty: whole replicas
};

/// The job on `nodes` of its nodes, or on the largest smaller number that holds whole replicas. Only dp
/// changes; the global batch and all else stay. None if that leaves fewer than
/// `cluster.failures.min_replicas`, or no valid job.
std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes);
/// The job on `nodes` nodes with the layout that the leader has chosen. Empty `layout`: whole replicas.
std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes, const std::string& layout);

/// The sizes of an elastic job, chosen by its leader. With `cluster.failures.elastic.replan` a size may have
/// any layout that fits, preferably one that uses all ranks of its nodes.
class JobSizes {
 public:
  /// `rates`: see `replanned`.
  explicit JobSizes(job::JobSpec whole, std::optional<parallel::Topology> rates = {})
      : whole_(std::move(whole)), rates_(std::move(rates)) {}

  /// The size on `nodes` of its nodes, or on the largest smaller number that works. None if no number works.
  std::optional<JobSize> on(std::int64_t nodes);
  /// The size with the fewest nodes; the whole job if no smaller size works.
  JobSize smallest();

 private:
  std::optional<JobSize> exactly_on(std::int64_t nodes);

  job::JobSpec whole_;
  std::optional<parallel::Topology> rates_;
  std::map<std::int64_t, std::optional<JobSize>> planned_;  ///< by number of nodes
};

/// State that survives a change of the job's size. Each size is its own `Run` and starts from a checkpoint.
struct RunSeries {
  const job::JobSpec& whole;  ///< the job with all of its nodes
  RestartBudget restarts;
  RepeatedFailure failures = {};
  JobSizes sizes{whole};
  bool first = true;                       ///< true until the first size has ended
  std::optional<std::int64_t> nodes = {};  ///< number of nodes of the next size; none: the run is over
  std::string layout = {};                 ///< layout of the next size (JobSize::layout)
  bool was_ready = false;                  ///< all ranks of some size were ready
  /// By step: attempt number of its next folder. A lost host may still write to earlier ones.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< ids of injected faults that were made, as known here
  bool lead_recorded = false;                 ///< the event of this agent's taking the lead is recorded
  // State of supervise.spikes. A rollback also starts a new `Run`.
  std::vector<std::int64_t> spikes_used = {};  ///< see SpikeHistory
  struct Judged {
    std::int64_t step = 0;
    double loss = 0, grad_norm = 0;
  };
  std::deque<Judged> judged = {};  ///< the latest steps that updated the parameters
  /// Samples that a rollback skips: the first step after `step` begins with sample `cursor`.
  struct PassedOver {
    std::int64_t step = 0, cursor = 0;
  };
  std::optional<PassedOver> passed_over = {};   ///< latest; also in the file passed-over.json
  std::optional<std::int64_t> returns_to = {};  ///< after a rollback: the step that the next run begins after
  std::vector<std::vector<std::int64_t>> corruptions = {};  ///< ranks of each corruption, for the metrics
  /// After a shrink, until it has begun: no later state may be begun from (see Run::trusted_step).
  std::int64_t trusted_step = std::numeric_limits<std::int64_t>::max();
  struct WentBack {
    std::int64_t from = 0, to = 0;  ///< steps
  };
  std::optional<WentBack> went_back = {};  ///< last
  std::vector<HeldState> survived = {};    ///< in this agent's memory, of sizes and leads before the present
  bool from_disk = false;                  ///< the next run does not look at them
};

}  // namespace trainerd::core::run
