#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/spec/spec.h"
#include "core/train/device_rank.h"
#include "kernels/base/fd.h"
#include "kernels/base/socket.h"
#include "parallel/gloo/gloo_world.h"
#include "parallel/layout.h"
#include "parallel/rendezvous/tcp_store.h"
#include "parallel/shm/shm_world.h"

namespace trainerd::core {

/// The ranks of one node: they follow each other.
struct NodeRanks {
  std::int64_t first = 0;
  std::int64_t count = 1;

  bool has(std::int64_t rank) const { return rank >= first && rank < first + count; }
  bool have_all(const std::vector<std::int64_t>& ranks) const;
};
NodeRanks node_ranks(const parallel::Layout& layout, const parallel::Topology& topology, std::int64_t node);

/// What the ranks of a node share in memory: every group of the layout that is all on the node, sized for what it moves. Agent
/// and workers work it out alike.
parallel::ShmLayout shared_memory_layout(const JobSpec& job, const parallel::Layout& layout, const NodeRanks& here);

/// How one rank reaches the others: by shared memory in groups that are all on its node, by Gloo in groups that are not. Outlives
/// its communicators.
class RankWorld {
 public:
  struct Options {
    std::int64_t rank = 0;
    NodeRanks here;
    base::UniqueFd shared;      ///< the node's memory; none for a rank alone on it
    double spin_seconds = 0;    ///< of ShmOptions
    std::string rendezvous;     ///< host:port of the store; empty: all ranks are here
    std::string interface;      ///< by which the other nodes reach this one
  };
  RankWorld(const JobSpec& job, const parallel::Layout& layout, Options options);

  /// All members of a group make it at a time; all ranks make those they share in one order.
  std::unique_ptr<parallel::Communicator> communicator(kernels::Backend& backend, const std::string& name,
                                                       const std::vector<std::int64_t>& members);

 private:
  NodeRanks here_;
  std::unique_ptr<parallel::ShmWorld> shared_;
  std::unique_ptr<parallel::TcpStore> store_;
  std::unique_ptr<parallel::GlooWorld> gloo_;
};

}  // namespace trainerd::core
