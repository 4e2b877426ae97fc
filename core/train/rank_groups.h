#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/job/model_options.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/data_parallel.h"
#include "parallel/group/members.h"
#include "parallel/group/world.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::train {

parallel::GroupNeeds group_needs(const job::ModelOptions& model);

/// The communicators of one rank.
class RankGroups {
 public:
  RankGroups(const parallel::Layout& layout, std::int64_t rank, const job::ModelOptions& model,
             parallel::World& world, kernels::Backend& backend);
  /// The same groups, each wrapped in another communicator.
  RankGroups(const RankGroups& inner,
             const std::function<std::unique_ptr<parallel::Communicator>(parallel::Group group,
                                                                         parallel::Communicator&)>& wrap);

  std::int64_t rank() const { return rank_; }
  parallel::Communicator& tp() const { return *find(parallel::Group::tp); }
  /// Null with one context-parallel rank.
  parallel::Communicator* cp() const { return find(parallel::Group::cp); }
  /// Null with one expert-parallel rank.
  parallel::Communicator* ep() const { return find(parallel::Group::ep); }
  /// Those that sum the gradients of experts, if these are apart (ParallelOptions::experts_apart).
  parallel::DataParallelGroups expert_data_parallel(const parallel::Layout& layout) const;
  /// The ranks that sum gradients, by the layout's levels.
  parallel::DataParallelGroups data_parallel(const parallel::Layout& layout) const;
  /// Null members if nothing is offloaded.
  parallel::HostLink host_link() const {
    return {find(parallel::Group::from_host), find(parallel::Group::to_host)};
  }
  parallel::Communicator& pp() const { return *find(parallel::Group::pp); }
  parallel::Communicator& world() const { return *find(parallel::Group::world); }
  /// Null if each key and value head is on one rank of the tp group only.
  parallel::Communicator* kv() const { return find(parallel::Group::kv); }
  /// Null if there is no tied embedding at both ends of the pipeline, or this rank is at neither end.
  parallel::Communicator* tied() const { return find(parallel::Group::tied); }

 private:
  parallel::Communicator* find(parallel::Group group) const {
    return groups_[static_cast<std::size_t>(group)].get();
  }

  std::int64_t rank_;
  std::array<std::unique_ptr<parallel::Communicator>, parallel::kGroups.size()> groups_;
};

}  // namespace trainerd::core::train
