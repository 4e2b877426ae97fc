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
  /// Bytes by what they are for, over all regions; with `device_overhead`.
  std::map<std::string, std::int64_t> terms;
  std::int64_t bytes = 0;  ///< all of them
};

/// What one device sends and receives in a step in one of its groups, of the stage where that takes longest.
struct TrafficPlan {
  std::string group;
  std::string link;
  std::int64_t size = 1;
  std::int64_t calls = 0;
  double bytes = 0;    ///< of the tensors
  double seconds = 0;  ///< exposed or not
};

struct CheckpointPlan {
  std::int64_t bytes = 0;       ///< of the whole checkpoint
  double snapshot_seconds = 0;  ///< that the copy to the host takes; 0: unknown
  /// Checkpoint stall. A GPU copies beside the next step's forward and backward, which only
  /// read what is saved; its optimizer waits for the rest.
  double stall_seconds = 0;
  double failure_seconds = 0;   ///< mean time between failures of the job's nodes; 0: unknown
  double interval_seconds = 0;  ///< between checkpoints that waste least (checkpoint_interval.h), as if all
                                ///< of the copy were checkpoint stall
};

/// A change to the job that fits, or when none does, that needs least memory.
struct NearLayout {
  std::string change;
  std::int64_t peak_bytes = 0;
  bool fits = true;
  double step_seconds = 0;  ///< 0: not predicted
};

struct Plan {
  job::JobSpec job;
  parallel::Topology topology;
  std::string layout;  ///< parallel::describe
  std::vector<StagePlan> stages;
  std::int64_t device_bytes = 0;  ///< that a device has
  std::int64_t peak_bytes = 0;    ///< of the largest stage
  std::int64_t staging_bytes =
      0;  ///< of pinned memory that a rank's staged communication holds on its host, at most
  std::size_t worst_stage = 0;
  rank::Fit fit;  ///< of the node whose ranks need most
  bool fits = false;
  std::vector<NearLayout> near;  ///< of near_changes

  AttentionPlan attention;
  bool timed = false;  ///< the topology has rates; if not, what follows is 0
  Replay time;
  GraphIssue graphs;  ///< of the stage whose host takes longest
  /// What supervise.verify adds to a step on average: all but the update of every n-th step a second time.
  double verify_seconds = 0;
  double canary_seconds = 0;  ///< of the step before the first of each start; 0: there is none
  std::vector<TrafficPlan> communication;
  double tokens_per_second_per_device = 0;
  double model_tflops_per_device = 0;     ///< by flops_per_token: what is recomputed does not count
  double hardware_tflops_per_device = 0;  ///< mean over the stages, by operators
  double mfu = 0;
  CheckpointPlan checkpoint;
};

/// Changes of the caller to a plan of a step that differs from this trainer's. All are optional.
struct PlanChanges {
  std::function<void(parallel::Layout&)> layout;
  /// Of what is replayed. The groups' places outlive the replay.
  std::function<void(const GroupPlaces&, ReplayInput&)> replay;
  /// Bytes of logits that a stage holds beyond this trainer's.
  std::function<std::int64_t(const StagePlan&)> more_logits;
};

/// Runs the job's own step in the meta world, once for each class of pipeline ranks that do the same, and
/// replays its schedule on the machines of `topology`. Throws CapacityError or SpecError where the job cannot
/// be laid out on them at all, or its attention.require is not met.
Plan make_plan(const job::JobSpec& job, const parallel::Topology& topology, const PlanChanges& changes = {});

/// A line each, indented.
std::string near_text(const std::vector<NearLayout>& near);

/// Bytes of memory that there are for a rank: of its device, or its share of the node's.
std::int64_t device_bytes(const parallel::Topology& topology, std::int64_t ranks);

enum class WhenTooLarge : std::uint8_t { all, memory_alone };
/// The same for a layout that was resolved, with the slots of its pipeline ranks and where its groups are.
/// What does not fit may be spared the rest of its plan.
Plan plan_layout(const job::JobSpec& job, const parallel::Topology& topology, const parallel::Layout& layout,
                 const std::vector<train::SlotCounts>& slots, const GroupPlaces& groups,
                 WhenTooLarge when_too_large, const PlanChanges& changes = {});

/// A few lines: the layout, memory against what a device has, the time per step and of the whole job.
std::string plan_summary(const Plan& plan);
/// For people, and as one JSON object. `tokens`, when not 0, is a budget to train on.
std::string plan_text(const Plan& plan, double tokens);
std::string plan_json(const Plan& plan, double tokens);

}  // namespace trainerd::core::plan
