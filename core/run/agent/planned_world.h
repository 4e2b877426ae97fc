#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/run/agent/planned_ranks.h"
#include "core/run/worker/rank_world.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// The layout of a world, the ranks of this node, and their planned memory.
struct PlannedWorld {
  parallel::Layout layout;
  NodeRanks here;
  PlannedRanks ranks;
};

/// Throws CapacityError, as `plan_ranks` does.
PlannedWorld plan_world(const job::JobSpec& job, const parallel::Topology& topology, std::int64_t node);

}  // namespace trainerd::core::run
