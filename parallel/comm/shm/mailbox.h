#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "parallel/comm/shm/group_context.h"

namespace trainerd::parallel {

/// The messages of one rank in one group, over a ring for each ordered pair. A send never blocks: what a ring
/// has no room for is copied aside and follows by `flush`, which any wait of this rank calls. Messages from
/// one rank arrive in the order of its sends and fill the receives from it in the order they were posted.
/// `send` and `flush` are for any thread, the rest for one.
class Mailbox {
 public:
  using Ticket = MessageTicket;

  explicit Mailbox(const GroupContext& context);

  /// False when some of it had to be put aside.
  bool send(std::int64_t to, const kernels::Tensor& x, const char* label);
  Ticket post_receive(std::int64_t from, const kernels::Tensor& x, const char* label);
  /// Blocks until the receives are filled. Throws CommError: too late, another size or dtype than was sent,
  /// world ended.
  void wait(std::span<const Ticket> receives, double deadline_seconds);
  /// The receive's tensor is no longer there; its message will be thrown away.
  void drop(const Ticket& receive);

  /// Moves what was put aside, as far as there is room; true when nothing is left or the world has ended.
  bool flush();

 private:
  struct Receive {
    OpRecord record;
    std::byte* data = nullptr;  ///< null: dropped
    bool header_read = false;
    std::int64_t done_bytes = 0;
  };
  struct Peer {
    std::uint64_t sent = 0;
    std::deque<std::vector<std::byte>> aside;  ///< messages, or the rest of one, that wait for room
    std::int64_t aside_done = 0;               ///< bytes of the first that are in the ring
    std::uint64_t received = 0;                ///< receives from it that are filled
    std::deque<Receive> receives;
  };
  Peer& peer(std::int64_t rank) { return peers_[static_cast<std::size_t>(rank)]; }
  std::int64_t push(std::int64_t to, const std::byte* from, std::int64_t bytes);
  bool push_aside(std::int64_t to);
  /// Takes what has come from a peer.
  void take(std::int64_t from);
  void check_header(std::int64_t from, const Receive& receive, const OpRecord& sent) const;
  bool filled(const Ticket& t) const { return peers_[static_cast<std::size_t>(t.peer)].received > t.index; }

  const GroupContext& context_;
  std::vector<Peer> peers_;
  std::mutex send_mutex_;
  std::atomic<bool> anything_aside_{false};
};

}  // namespace trainerd::parallel
