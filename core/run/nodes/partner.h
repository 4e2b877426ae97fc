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

/// The state of every rank of a node after a step, on its way between agents or kept by one for another.
struct NodeCopy {
  struct Rank {
    std::vector<io::TensorSlice> slices;    ///< that the bytes hold
    std::vector<io::TensorSlice> borrowed;  ///< of the rank's state, what other ranks save
    std::int64_t bytes = 0;
    std::string xxh3;  ///< of the bytes, by the node that they are of
    std::shared_ptr<const base::Segment> memory;
  };
  std::int64_t node = 0;  ///< that it is of
  std::int64_t step = 0, cursor = 0, tokens = 0;
  std::vector<Rank> ranks;   ///< of the node
  std::int64_t attempt = 1;  ///< of the run, in which it was taken

  std::int64_t bytes() const;
  /// Whether it has all that the node's ranks need.
  bool self_contained() const;
};

/// This node's end of the partner tier: sends snapshots to the agent of another node, and keeps those of a
/// third: the one of which every node's copy is kept, and the newest. All of it on threads of its own;
/// connections are between processes that have shown each other the job's token
/// (parallel/comm/rendezvous/job_token.h).
class Partner {
 public:
  struct Options {
    std::int64_t node = 0;     ///< this one
    std::int64_t partner = 0;  ///< that keeps its copies
    base::Endpoint store;      ///< where agents write the address at which they listen
    std::string address;       ///< of this node, by which others reach it
    parallel::JobToken token;
  };
  explicit Partner(Options options);
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  /// Leaves word of where this agent listens, for an attempt of the run. Throws CommError.
  void begin(std::int64_t attempt);
  /// Sends a copy of the present attempt, one at a time. Its `xxh3` are made here. `kept_by_all`: the step
  /// that the partner keeps until it has this one.
  void send(NodeCopy copy, std::int64_t kept_by_all = -1);
  bool sending() const;
  struct Sent {
    std::int64_t step = 0;
    std::int64_t bytes = 0;
    double seconds = 0;
    std::string problem;  ///< empty: the partner keeps it
  };
  /// What became of what was sent, once.
  std::optional<Sent> take();
  /// Readable when `take` has something.
  int event_fd() const;
  /// Ends what is being sent.
  void stop_sending();

  /// What is kept of another node, oldest first. Without the bytes' owners it means nothing.
  std::vector<NodeCopy> kept() const;
  /// Steps after `step` will be done again. What is still on its way is of an earlier attempt and refused.
  void drop_after(std::int64_t step);
  /// This node's own snapshot of a step, from its partner; its bytes are as they were sent. Throws CommError.
  NodeCopy fetch(std::int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The node that keeps copies of `node`: in another NVLink domain where domains span several nodes, else the
/// next one. `domain`: nodes of a domain.
std::int64_t partner_of(std::int64_t node, std::int64_t nodes, std::int64_t domain);

}  // namespace trainerd::core::run
