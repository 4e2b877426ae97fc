#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/job/model_options.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/data_parallel.h"
#include "parallel/layout/layout.h"

namespace trainerd::core {

/// Makes the communicator of a group: `ranks` are world ranks in rising group order, this rank among them. All ranks of a
/// group call with the same name.
using MakeGroup =
    std::function<std::unique_ptr<parallel::Communicator>(const std::string& name, const std::vector<std::int64_t>& ranks)>;

/// A group by name and world ranks.
struct GroupRanks {
  std::string name;
  std::vector<std::int64_t> ranks;
  bool operator==(const GroupRanks&) const = default;
};

/// The groups of one rank: tp, dp (in two levels dp_inner and dp_outer), pp and world; `kv`, where ranks of the tp group hold the same key and value heads; `tied`, where
/// both ends of the pipeline hold a tied embedding and the rank is at one.
std::vector<GroupRanks> groups_of(const parallel::Layout& layout, std::int64_t rank, const ModelOptions& model);
/// Those of all ranks, each once.
std::vector<GroupRanks> all_groups(const parallel::Layout& layout, const ModelOptions& model);

/// The communicators of one rank.
class RankGroups {
 public:
  RankGroups(const parallel::Layout& layout, std::int64_t rank, const ModelOptions& model, const MakeGroup& make);
  /// The same groups, each seen through another communicator.
  RankGroups(const RankGroups& inner,
             const std::function<std::unique_ptr<parallel::Communicator>(const std::string& name, parallel::Communicator&)>& wrap);

  std::int64_t rank() const { return rank_; }
  parallel::Communicator& tp() const { return *groups_.at("tp"); }
  /// The data-parallel ranks, in the levels that the layout tells.
  parallel::DataParallelGroups data_parallel(const parallel::Layout& layout) const;
  parallel::Communicator& pp() const { return *groups_.at("pp"); }
  parallel::Communicator& world() const { return *groups_.at("world"); }
  /// Null when every key and value head is held by one rank of the tp group.
  parallel::Communicator* kv() const { return find("kv"); }
  /// Null when no embedding is held at both ends of the pipeline, or this rank is at neither.
  parallel::Communicator* tied() const { return find("tied"); }

 private:
  parallel::Communicator* find(const std::string& name) const {
    const auto it = groups_.find(name);
    return it == groups_.end() ? nullptr : it->second.get();
  }
  std::int64_t rank_;
  std::map<std::string, std::unique_ptr<parallel::Communicator>> groups_;
};

}  // namespace trainerd::core
