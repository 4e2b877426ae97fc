#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "kernels/base/segment.h"
#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/job_token.h"

namespace trainerd::core::run {

/// The snapshots of all ranks of a node after one step, while sent between agents or kept for another node.
struct NodeCopy {
  struct Rank {
    std::vector<io::TensorSlice> slices;    ///< slices in the bytes
    std::vector<io::TensorSlice> borrowed;  ///< slices of the rank's state that other ranks save
    std::int64_t bytes = 0;
    std::string xxh3;  ///< hash of the bytes, computed by the node that owns the state
    std::shared_ptr<const base::Segment> memory;
  };
  std::int64_t node = 0;  ///< the node that owns the state
  std::int64_t step = 0, cursor = 0, tokens = 0;
  std::vector<Rank> ranks;   ///< of that node
  std::int64_t attempt = 1;  ///< the attempt that made the snapshots

  std::int64_t bytes() const;
  /// True if it has all that the node's ranks need.
  bool self_contained() const;
};

/// This node's part of the partner tier. It sends snapshots to its partner's agent, and keeps another node's:
/// the step that all partners keep, and the newest. It uses its own threads. Connected processes have
/// authenticated each other with the job's token (parallel/comm/rendezvous/job_token.h).
class Partner {
 public:
  struct Options {
    std::int64_t node = 0;     ///< this node
    std::int64_t partner = 0;  ///< the node that keeps its copies
    base::Endpoint store;      ///< where agents publish their addresses
    std::string address;       ///< of this node, reachable from the others
    parallel::JobToken token;
  };
  explicit Partner(Options options);
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  /// Publishes where this agent listens in an attempt of the run. Throws CommError.
  void begin(std::int64_t attempt);
  /// Sends a copy in the background, one at a time; it is of the present attempt. Computes its `xxh3`.
  /// `kept_by_all`: a step that the partner must keep until it has this one.
  void send(NodeCopy copy, std::int64_t kept_by_all = -1);
  bool sending() const;
  struct Sent {
    std::int64_t step = 0;
    std::int64_t bytes = 0;
    double seconds = 0;
    std::string problem;  ///< empty: the partner keeps the copy
  };
  /// The result of the last send, once.
  std::optional<Sent> take();
  /// Readable when `take` has a result.
  int event_fd() const;
  /// Aborts the current send.
  void stop_sending();

  /// The copies kept for other nodes, oldest first.
  std::vector<NodeCopy> kept() const;
  /// Drops copies of steps after `step`, which will be done again. A copy still on its way from an earlier
  /// attempt is refused.
  void drop_after(std::int64_t step);
  /// Fetches this node's own snapshot of a step from its partner and checks its hashes. Throws CommError.
  NodeCopy fetch(std::int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The node that keeps copies of `node`: in the next NVLink domain if domains span several nodes, else the
/// next node. `domain`: number of nodes per domain.
std::int64_t partner_of(std::int64_t node, std::int64_t nodes, std::int64_t domain);

}  // namespace trainerd::core::run
