#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "core/plan/predict/memory_use.h"
#include "core/rank/dry_run.h"
#include "core/run/worker/rank_world.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// What an agent plans before it starts a worker.
struct PlannedRanks {
  std::vector<rank::DryRun> here;  ///< of each rank of the node, in order
  std::vector<plan::RankClass>
      known;  ///< those, and on the leader all others: one record stands for a pipeline rank's
};

/// Throws CapacityError when the ranks of `here` do not fit the node, or planning takes more memory than
/// there is.
PlannedRanks plan_ranks(const job::JobSpec& job, const parallel::Layout& layout,
                        const parallel::Topology& topology, const NodeRanks& here, bool leads);

}  // namespace trainerd::core::run
