#include "parallel/group/members.h"

#include "parallel/layout/schedule_shape.h"

namespace trainerd::parallel {
namespace {

RankRange along(const ProcessGrid& grid, std::int64_t rank, Axis axis) {
  const std::int64_t stride = grid.stride(axis);
  return {rank - grid.coordinate(rank)[static_cast<std::size_t>(axis)] * stride, grid.size(axis), stride};
}

RankRange gradient_ranks(const ProcessGrid& grid, std::int64_t rank) {
  return {grid.gradient_first(rank), grid.size(Axis::dp) * grid.size(Axis::cp), grid.gradient_stride()};
}

}  // namespace

std::vector<std::int64_t> RankRange::list() const {
  std::vector<std::int64_t> ranks;
  ranks.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) ranks.push_back((*this)[i]);
  return ranks;
}

std::vector<GroupMembers> groups_of(const Layout& layout, std::int64_t rank, const GroupNeeds& needs) {
  const ProcessGrid& grid = layout.grid;
  const RankRange tp = along(grid, rank, Axis::tp), pp = along(grid, rank, Axis::pp),
                  dp = gradient_ranks(grid, rank), cp = along(grid, rank, Axis::cp);
  std::vector<GroupMembers> groups{{Group::tp, tp}, {Group::pp, pp}};

  const std::int64_t inner = layout.dp_levels.inner, place = *dp.place(rank);
  if (layout.dp_levels.one()) {
    groups.push_back({Group::dp, dp});
  } else {
    groups.push_back({Group::dp_inner, {dp[place / inner * inner], inner, dp.stride}});
    groups.push_back({Group::dp_outer, {dp[place % inner], dp.count / inner, dp.stride * inner}});
  }
  if (cp.count > 1) groups.push_back({Group::cp, cp});
  if (layout.options.ep > 1) groups.push_back({Group::ep, along(layout.expert_grid, rank, Axis::ep)});
  if (layout.options.experts_apart())
    groups.push_back({Group::edp, along(layout.expert_grid, rank, Axis::dp)});
  if (layout.options.offloads())
    for (const Group link : {Group::from_host, Group::to_host}) groups.push_back({link, {rank, 1, 1}});
  groups.push_back({Group::world, {0, grid.ranks(), 1}});

  if (const std::int64_t holders = tp.count / needs.kv_heads; holders > 1)
    groups.push_back({Group::kv, {tp[*tp.place(rank) / holders * holders], holders, tp.stride}});
  const ScheduleShape shape = schedule_shape(layout.options, 1);
  const bool apart = shape.rank_of(0) != shape.rank_of(shape.chunks() - 1);
  if (needs.tied_embedding && apart && (rank == pp.first || rank == pp.last()))
    groups.push_back({Group::tied, {pp.first, 2, pp.last() - pp.first}});
  return groups;
}

std::vector<GroupMembers> groups_begun(const Layout& layout, const RankRange& among,
                                       const GroupNeeds& needs) {
  std::vector<GroupMembers> all;
  for (std::int64_t i = 0; i < among.count; ++i)
    for (const GroupMembers& group : groups_of(layout, among[i], needs))
      if (group.ranks.first == among[i]) all.push_back(group);
  return all;
}

}  // namespace trainerd::parallel
