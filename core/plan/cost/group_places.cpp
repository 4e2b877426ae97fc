#include "core/plan/cost/group_places.h"

#include <array>

#include "core/train/rank_groups.h"
#include "kernels/base/error.h"

namespace trainerd::core::plan {

using parallel::Axis;

std::int64_t representative(const parallel::Layout& layout, std::int64_t pipeline_rank) {
  parallel::ProcessGrid::Coordinate place{};
  place[static_cast<std::size_t>(Axis::pp)] = pipeline_rank;
  return layout.grid.rank(place);
}

GroupPlaces::GroupPlaces(const job::ModelOptions& model, const parallel::Layout& layout,
                         const parallel::Topology& topology)
    : placed_(layout.grid, topology) {
  const std::int64_t stages = layout.options.pp;
  for (std::int64_t r = 0; r < stages; ++r) {
    const std::int64_t rank = representative(layout, r);
    const std::array pair{rank, representative(layout, (r + 1) % stages)};
    next_.push_back(stages > 1 ? placed_.link(pair, Axis::dp) : parallel::Link::none);
    auto& mine = places_.emplace_back();
    for (const parallel::GroupMembers& group : parallel::groups_of(layout, rank, train::group_needs(model))) {
      if (group.group == parallel::Group::pp) continue;
      const auto at = static_cast<std::size_t>(group.group);
      // All ranks are one group, the same for every rank.
      if (group.group == parallel::Group::world && r > 0) mine[at] = places_.front()[at];
      else mine[at] = place_of(placed_, group.ranks.list());
    }
  }
}

parallel::Link GroupPlaces::link(std::int64_t from, std::int64_t to) const {
  const auto stages = static_cast<std::int64_t>(next_.size());
  base::check((from + 1) % stages == to || (to + 1) % stages == from, "messages go between neighbours");
  return next_[static_cast<std::size_t>((from + 1) % stages == to ? from : to)];
}

}  // namespace trainerd::core::plan
