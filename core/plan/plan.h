#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/plan/replay.h"
#include "core/spec/spec.h"
#include "kernels/memory.h"
#include "parallel/layout.h"
#include "parallel/topology.h"

namespace trainerd::core {

/// One pipeline stage: the memory of its largest rank.
struct StagePlan {
  std::vector<parallel::StageSpan> chunks;
  kernels::MemoryPlan memory;                 ///< by region
  std::map<std::string, std::int64_t> terms;  ///< bytes by what they are for, over all regions; with `device_overhead`
  std::int64_t bytes = 0;                     ///< all of them
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
  std::int64_t bytes = 0;        ///< of the whole checkpoint
  double snapshot_seconds = 0;   ///< training stands still; 0: unknown
  double failure_seconds = 0;    ///< mean time between failures of the job's nodes; 0: unknown
  double interval_seconds = 0;   ///< between checkpoints that waste least: sqrt(2 C M) (Young, CACM 17(9), 1974)
};

/// A change to the job that fits.
struct NearLayout {
  std::string change;
  std::int64_t peak_bytes = 0;
};

struct Plan {
  JobSpec job;
  parallel::Topology topology;
  std::string layout;  ///< parallel::describe
  std::vector<StagePlan> stages;
  std::int64_t device_bytes = 0;  ///< that a device has
  std::int64_t peak_bytes = 0;    ///< of the largest stage
  std::int64_t staging_bytes = 0; ///< of pinned memory that a rank's staged communication holds on its host, at most
  std::size_t worst_stage = 0;
  bool fits = false;
  std::vector<NearLayout> near;  ///< of find_near_layouts

  bool timed = false;  ///< the topology has rates; if not, what follows is 0
  Replay time;
  std::vector<TrafficPlan> communication;
  double tokens_per_second_per_device = 0;
  double model_tflops_per_device = 0;     ///< by flops_per_token: what is recomputed does not count
  double hardware_tflops_per_device = 0;  ///< mean over the stages, by operators
  double mfu = 0;
  CheckpointPlan checkpoint;
};

/// Runs the job's own step in the meta world, once for each class of pipeline ranks that do the same, and replays its schedule on
/// the machines of `topology`. Throws CapacityError or SpecError where the job cannot be laid out on them at all.
Plan make_plan(const JobSpec& job, const parallel::Topology& topology);

/// Fills `near` of a plan that does not fit.
void find_near_layouts(Plan& plan);

/// For people, and as one JSON object. `tokens`, when not 0, is a budget to train on.
std::string plan_text(const Plan& plan, double tokens);
std::string plan_json(const Plan& plan, double tokens);

}  // namespace trainerd::core
