#include "core/train/rank_groups.h"

namespace trainerd::core::train {

using parallel::Group;

parallel::GroupNeeds group_needs(const job::ModelOptions& model) {
  return {.kv_heads = model.kv_heads, .tied_embedding = model.tie_embeddings};
}

RankGroups::RankGroups(const parallel::Layout& layout, std::int64_t rank, const job::ModelOptions& model,
                       parallel::World& world, kernels::Backend& backend)
    : rank_(rank) {
  for (const parallel::GroupMembers& group : parallel::groups_of(layout, rank, group_needs(model)))
    groups_[static_cast<std::size_t>(group.group)] = world.communicator(backend, group);
}

parallel::DataParallelGroups RankGroups::expert_data_parallel(const parallel::Layout& layout) const {
  parallel::DataParallelGroups groups = data_parallel(layout);
  groups.inner = find(Group::edp), groups.outer = nullptr, groups.replicas = false;
  return groups;
}

parallel::DataParallelGroups RankGroups::data_parallel(const parallel::Layout& layout) const {
  const auto progress = [](bool overlap) {
    return overlap ? parallel::Progress::background : parallel::Progress::caller;
  };
  return {.inner = find(layout.dp_levels.one() ? Group::dp : Group::dp_inner),
          .outer = find(Group::dp_outer),
          .replicas = layout.dp_levels.replicas,
          .gradients = progress(layout.options.overlap_grad_reduce),
          .parameters = progress(layout.options.overlap_param_gather)};
}

RankGroups::RankGroups(
    const RankGroups& inner,
    const std::function<std::unique_ptr<parallel::Communicator>(Group, parallel::Communicator&)>& wrap)
    : rank_(inner.rank_) {
  for (const parallel::GroupInfo& group : parallel::kGroups)
    if (parallel::Communicator* communicator = inner.find(group.group))
      groups_[static_cast<std::size_t>(group.group)] = wrap(group.group, *communicator);
}

}  // namespace trainerd::core::train
