#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/run/nodes/membership.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/rank_world.h"

namespace trainerd::core::run {

/// The ranks that are ready for the first step of an attempt: each rank of this node and, on the leader,
/// every other node. One message to the leader describes all ranks of a node, but not their snapshots, which
/// are described when they are saved.
class ReadyRanks {
 public:
  ReadyRanks(const NodeRanks& here, const Membership& membership) : here_(here), membership_(membership) {}

  /// A rank of this node is ready.
  void add(std::int64_t rank, Ready ready) { ranks_[rank] = std::move(ready); }
  /// All ranks of another node are; its message has just arrived.
  void add_node(std::int64_t node, NodeReady ready);

  bool all_here() const { return std::cmp_equal(ranks_.size(), here_.count); }
  /// All that this agent waits for: a follower waits for its own ranks.
  bool all() const {
    return all_here() && (!membership_.leads() || std::cmp_equal(nodes_.size(), membership_.nodes() - 1));
  }
  /// Of this node.
  const std::map<std::int64_t, Ready>& ranks() const { return ranks_; }
  using Evaluated = std::map<std::string, std::string>;  ///< DataSeen::evaluated
  /// What is sent to the leader when all ranks of this node are ready.
  NodeReady summary(std::int64_t attempt, const Evaluated& evaluated = {}) const;
  /// How fast the ranks that this agent knows of compute.
  std::vector<RankRate> rates() const;
  /// The links between nodes that the ranks that this agent knows of have measured.
  std::vector<LinkTime> links() const;
  /// What they made of the step before the first.
  std::vector<CanaryResult> canaries() const;
  /// Of the other nodes, on the leader.
  const std::map<std::int64_t, NodeReady>& nodes() const { return nodes_; }
  /// How far the clocks of other nodes are ahead of this one's.
  const std::map<std::int64_t, ClockRange>& clocks() const { return clocks_; }
  /// Of all ranks that this agent knows of.
  std::int64_t threads() const;
  /// Throws DataError naming a rank of this node, or another node, that sees other data than `data` says, or
  /// a node that evaluates on other files than this one.
  void require_data(const std::string& data, const Evaluated& evaluated = {}) const;

 private:
  NodeRanks here_;
  const Membership& membership_;
  std::map<std::int64_t, Ready> ranks_;      ///< of this node
  std::map<std::int64_t, NodeReady> nodes_;  ///< the others, on the leader
  std::map<std::int64_t, ClockRange> clocks_;
};

}  // namespace trainerd::core::run
