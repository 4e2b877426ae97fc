#include "core/supervise/rank_world.h"

#include <algorithm>

#include "core/train/rank_groups.h"

namespace trainerd::core {

parallel::ShmLayout shared_memory_layout(const JobSpec& job, const parallel::Layout& layout) {
  // Pipeline neighbours send one flow at a time; a longer message than its ring is sent in parts.
  constexpr std::int64_t kLargestRing = std::int64_t{8} << 20;
  const std::int64_t flow = job.batch.micro * job.model.seq_len * job.model.hidden * kernels::size_of(job.precision.compute);
  parallel::ShmLayout shared;
  shared.ranks = layout.grid.ranks();
  for (const GroupRanks& group : all_groups(layout, job.model)) {
    if (group.ranks.size() == 1) continue;
    parallel::ShmGroup& made = shared.groups.emplace_back();
    made.name = group.name;
    made.ranks = group.ranks;
    if (group.name == "pp") made.ring_bytes = std::min(kLargestRing, kernels::align_up(2 * flow, 4096));
  }
  return shared;
}

}  // namespace trainerd::core
