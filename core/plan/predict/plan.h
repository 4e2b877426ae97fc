#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/plan/cost/group_places.h"
#include "core/plan/predict/attention_plan.h"
#include "core/plan/replay/graph_issue.h"
#include "core/plan/replay/replay.h"
#include "core/rank/dry_run.h"
#include "core/train/step_memory.h"
#include "kernels/memory/memory.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// One pipeline stage: the memory of its largest rank.
struct StagePlan {
  std::vector<parallel::ChunkSpan> chunks;
  kernels::MemoryBudget memory;  ///< by region
  /// Bytes by memory term, over all regions, including `device_overhead`.
  std::map<std::string, std::int64_t> terms;
  std::map<std::string, std::int64_t> host_terms;  ///< the same of host memory
  std::int64_t bytes = 0;                          ///< total of the device, with alignment
};

/// Communication of one device per step in one group, for the stage where it takes longest.
struct TrafficPlan {
  std::string group;
  std::string link;
  std::int64_t size = 1;
  std::int64_t calls = 0;
  double bytes = 0;    ///< tensor bytes
  double seconds = 0;  ///< exposed or not
};

struct CheckpointPlan {
  std::int64_t bytes = 0;       ///< of the whole checkpoint
  double snapshot_seconds = 0;  ///< duration of the copy to the host; 0: unknown
  /// Checkpoint stall. A GPU copies during the next step's forward and backward, which only read the saved
  /// tensors. The optimizer waits for the rest of the copy.
  double stall_seconds = 0;
  double failure_seconds = 0;   ///< mean time between failures of the job's nodes; 0: unknown
  double interval_seconds = 0;  ///< optimal checkpoint interval (checkpoint_interval.h), with the whole copy
                                ///< counted as checkpoint stall
};

/// A change to the job that makes it fit, or if none does, one that needs least memory.
struct NearLayout {
  std::string change;
  std::int64_t peak_bytes = 0;
  bool fits = true;
  double step_seconds = 0;  ///< 0: not predicted
};

/// Steps of a smaller batch at the start of a run.
struct RampPlan {
  job::BatchSpan span;
  double step_seconds = 0;
};

struct Plan {
  job::JobSpec job;
  parallel::Topology topology;
  std::string layout;  ///< parallel::describe
  std::vector<StagePlan> stages;
  std::int64_t device_bytes = 0;   ///< memory of a device
  std::int64_t peak_bytes = 0;     ///< of the largest stage
  std::int64_t staging_bytes = 0;  ///< pinned host memory of a rank's staged communication, at most
  std::size_t worst_stage = 0;
  rank::Fit fit;  ///< for the node whose ranks need most
  bool fits = false;
  std::vector<NearLayout> near;  ///< from near_changes
  std::vector<RampPlan> ramp;    ///< from ramp_plans; all else is of the full batch

  AttentionPlan attention;
  bool timed = false;  ///< the topology has rates; if false, all times and rates below are 0
  Replay time;
  GraphIssue graphs;  ///< for the stage whose host takes longest
  /// Mean extra time per step of supervise.verify, which repeats every n-th step without its update.
  double verify_seconds = 0;
  double canary_seconds = 0;  ///< of the step before the first of each start; 0: there is none
  std::vector<TrafficPlan> communication;
  double tokens_per_second_per_device = 0;
  double model_tflops_per_device = 0;     ///< by flops_per_token: recomputation does not count
  double hardware_tflops_per_device = 0;  ///< mean over the stages of the operators' FLOPs
  double mfu = 0;
  CheckpointPlan checkpoint;
};

/// Optional changes to a plan, for a step that differs from this trainer's.
struct PlanChanges {
  std::function<void(parallel::Layout&)> layout;
  /// Changes the replay's input. The groups' places outlive the replay.
  std::function<void(const GroupPlaces&, ReplayInput&)> replay;
  /// Bytes of logits that a stage holds in addition to this trainer's.
  std::function<std::int64_t(const StagePlan&)> more_logits;
};

/// Runs the job's own step in the meta world, once for each class of equal pipeline ranks, and replays its
/// schedule on the machines of `topology`. Throws CapacityError or SpecError if the job cannot be laid out on
/// them, or cannot meet its attention.require.
Plan make_plan(const job::JobSpec& job, const parallel::Topology& topology, const PlanChanges& changes = {});

/// The times of the steps of `batch.ramp`; none for a topology without rates.
std::vector<RampPlan> ramp_plans(const job::JobSpec& job, const parallel::Topology& topology);

/// What a job's ranks hold of its parameters, gradients and optimizer states together, if each element is on
/// one of them: what no layout goes below.
struct LeastState {
  std::int64_t bytes = 0;       ///< on devices
  std::int64_t host_bytes = 0;  ///< what is offloaded, and snapshots
  std::int64_t devices = 0;     ///< that have `bytes` of memory; 0: unknown
  bool fits = true;             ///< false: the job's devices, or their nodes, have less memory
};
LeastState least_state(const job::JobSpec& job, const parallel::Topology& topology);

/// One indented line per change of a job that does not fit; if there are none, how many devices it needs.
std::string near_text(const job::JobSpec& job, const parallel::Topology& topology,
                      const std::vector<NearLayout>& near);

/// Memory available to a rank: its device's, or its share of the node's.
std::int64_t device_bytes(const parallel::Topology& topology, std::int64_t ranks);

enum class WhenTooLarge : std::uint8_t { all, memory_alone };
/// The same for a resolved layout, with the slots of its pipeline ranks and the places of its groups. With
/// `memory_alone` a plan that does not fit has no more than its memory.
Plan plan_layout(const job::JobSpec& job, const parallel::Topology& topology, const parallel::Layout& layout,
                 const std::vector<train::SlotCounts>& slots, const GroupPlaces& groups,
                 WhenTooLarge when_too_large, const PlanChanges& changes = {});

/// A few lines: the layout, memory needed and available, the time per step and of the whole job.
std::string plan_summary(const Plan& plan);
/// Human-readable, and as one JSON object. `tokens`, if not 0, is a training budget.
std::string plan_text(const Plan& plan, double tokens);
std::string plan_json(const Plan& plan, double tokens);

}  // namespace trainerd::core::plan
