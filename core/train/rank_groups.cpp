#include "core/train/rank_groups.h"

#include <algorithm>
#include <numeric>

namespace trainerd::core {

using parallel::Axis;

std::vector<GroupRanks> groups_of(const parallel::Layout& layout, std::int64_t rank, const ModelOptions& model) {
  const parallel::ProcessGrid& grid = layout.grid;
  std::vector<GroupRanks> groups;
  for (const Axis axis : {Axis::tp, Axis::pp}) groups.push_back({to_string(axis), grid.group(rank, axis)});
  const std::vector<std::int64_t> dp = grid.group(rank, Axis::dp);
  const std::int64_t inner = layout.dp_levels.inner, place = grid.coordinate(rank)[static_cast<std::size_t>(Axis::dp)];
  if (layout.dp_levels.one()) {
    groups.push_back({"dp", dp});
  } else {
    const auto first = dp.begin() + place / inner * inner;
    groups.push_back({"dp_inner", {first, first + inner}});
    GroupRanks outer{"dp_outer", {}};
    for (std::size_t i = static_cast<std::size_t>(place % inner); i < dp.size(); i += static_cast<std::size_t>(inner))
      outer.ranks.push_back(dp[i]);
    groups.push_back(std::move(outer));
  }
  GroupRanks world{"world", std::vector<std::int64_t>(static_cast<std::size_t>(grid.ranks()))};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  groups.push_back(std::move(world));

  const std::vector<std::int64_t> tp = grid.group(rank, Axis::tp), pp = grid.group(rank, Axis::pp);
  const std::int64_t holders = static_cast<std::int64_t>(tp.size()) / model.kv_heads;
  if (holders > 1) {
    const std::int64_t first = grid.coordinate(rank)[static_cast<std::size_t>(Axis::tp)] / holders * holders;
    groups.push_back({"kv", {tp.begin() + first, tp.begin() + first + holders}});
  }
  const bool at_an_end = rank == pp.front() || rank == pp.back();
  if (model.tie_embeddings && pp.size() > 1 && at_an_end) groups.push_back({"tied", {pp.front(), pp.back()}});
  return groups;
}

std::vector<GroupRanks> all_groups(const parallel::Layout& layout, const ModelOptions& model) {
  std::vector<GroupRanks> all;
  for (std::int64_t rank = 0; rank < layout.grid.ranks(); ++rank)
    for (GroupRanks& group : groups_of(layout, rank, model))
      if (std::find(all.begin(), all.end(), group) == all.end()) all.push_back(std::move(group));
  return all;
}

RankGroups::RankGroups(const parallel::Layout& layout, std::int64_t rank, const ModelOptions& model, const MakeGroup& make)
    : rank_(rank) {
  for (const GroupRanks& group : groups_of(layout, rank, model)) groups_[group.name] = make(group.name, group.ranks);
}

parallel::DataParallelGroups RankGroups::data_parallel(const parallel::Layout& layout) const {
  const auto progress = [](bool overlap) { return overlap ? parallel::Progress::background : parallel::Progress::caller; };
  return {.inner = groups_.at(layout.dp_levels.one() ? "dp" : "dp_inner").get(),
          .outer = find("dp_outer"),
          .replicas = layout.dp_levels.replicas,
          .gradients = progress(layout.options.overlap_grad_reduce),
          .parameters = progress(layout.options.overlap_param_gather)};
}

RankGroups::RankGroups(const RankGroups& inner,
                       const std::function<std::unique_ptr<parallel::Communicator>(const std::string&, parallel::Communicator&)>& wrap)
    : rank_(inner.rank_) {
  for (const auto& [name, communicator] : inner.groups_) groups_[name] = wrap(name, *communicator);
}

}  // namespace trainerd::core
