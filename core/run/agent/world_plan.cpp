#include "core/run/agent/world_plan.h"

#include "core/rank/device_rank.h"

namespace trainerd::core::run {

WorldPlan plan_world(const job::JobSpec& job, const parallel::Topology& topology, std::int64_t node) {
  WorldPlan world;
  world.layout = rank::layout_of(job, topology);
  world.here = node_ranks(world.layout, topology, node);
  world.ranks = plan_ranks(job, world.layout, topology, world.here, node == 0);
  return world;
}

}  // namespace trainerd::core::run
