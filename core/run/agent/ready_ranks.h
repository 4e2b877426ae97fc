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

/// The ranks that are ready for an attempt's first step: each rank of this node and, on the leader, the ranks
/// of every other node. A node sends the leader one message for all of its ranks. That message leaves out the
/// snapshots, which are described when they are saved.
class ReadyRanks {
 public:
  ReadyRanks(const NodeRanks& here, const Membership& membership) : here_(here), membership_(membership) {}

  /// A rank of this node is ready.
  void add(std::int64_t rank, Ready ready) { ranks_[rank] = std::move(ready); }
  /// All ranks of another node are ready; its message has just arrived.
  void add_node(std::int64_t node, NodeReady ready);

  bool all_here() const { return std::cmp_equal(ranks_.size(), here_.count); }
  /// True if all ranks that this agent waits for are ready. A follower waits for its own ranks only.
  bool all() const {
    return all_here() && (!membership_.leads() || std::cmp_equal(nodes_.size(), membership_.nodes() - 1));
  }
  /// The ranks of this node.
  const std::map<std::int64_t, Ready>& ranks() const { return ranks_; }
  using Evaluated = std::map<std::string, std::string>;  ///< DataSeen::evaluated
  /// The message to the leader when all ranks of this node are ready.
  NodeReady summary(std::int64_t attempt, const Evaluated& evaluated = {}) const;
  /// Measured compute rates of all ranks that this agent knows of.
  std::vector<RankRate> rates() const;
  /// The links between nodes that the ranks that this agent knows of have measured.
  std::vector<LinkTime> links() const;
  /// What they made of the step before the first.
  std::vector<CanaryResult> canaries() const;
  /// Of the other nodes, on the leader.
  const std::map<std::int64_t, NodeReady>& nodes() const { return nodes_; }
  /// Bounds on the lead of other nodes' clocks over this node's.
  const std::map<std::int64_t, ClockRange>& clocks() const { return clocks_; }
  /// Number of threads of all ranks that this agent knows of.
  std::int64_t threads() const;
  /// Throws DataError for a rank of this node, or another node, whose training data differs from `data`, and
  /// for a node whose evaluation files differ from `evaluated`.
  void require_data(const std::string& data, const Evaluated& evaluated = {}) const;

 private:
  NodeRanks here_;
  const Membership& membership_;
  std::map<std::int64_t, Ready> ranks_;      ///< of this node
  std::map<std::int64_t, NodeReady> nodes_;  ///< the other nodes, on the leader
  std::map<std::int64_t, ClockRange> clocks_;
};

}  // namespace trainerd::core::run
