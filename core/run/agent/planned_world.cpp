#include "core/run/agent/planned_world.h"

#include "core/rank/device_rank.h"

namespace trainerd::core::run {

PlannedWorld plan_world(const job::JobSpec& job, const parallel::Topology& topology, std::int64_t node) {
  PlannedWorld world;
  world.layout = rank::layout_of(job, topology);
  world.here = node_ranks(world.layout, topology, node);
  world.ranks = plan_ranks(job, world.layout, topology, world.here, node == 0);
  return world;
}

}  // namespace trainerd::core::run
