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

/// Dry runs of the ranks, made before any worker is started.
struct PlannedRanks {
  std::vector<rank::DryRun> here;      ///< of each rank of this node, in order
  std::vector<plan::RankClass> known;  ///< these; on the leader also the others, one record per pipeline rank
};

/// Throws CapacityError if the ranks of `here` do not fit the node, or planning itself runs out of memory.
PlannedRanks plan_ranks(const job::JobSpec& job, const parallel::Layout& layout,
                        const parallel::Topology& topology, const NodeRanks& here, bool leads);

}  // namespace trainerd::core::run
