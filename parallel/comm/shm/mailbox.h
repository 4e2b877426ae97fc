#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "parallel/comm/shm/group_context.h"

namespace trainerd::parallel {

/// The messages of one rank in one group, with one ring per ordered pair. A send never blocks: data that
/// finds no room in its ring is copied aside, and `flush` sends it later. Every wait of this rank calls
/// `flush`. Messages from one rank arrive in send order and fill receives in the order they were posted. Any
/// thread may call `send` and `flush`; the other functions are for one thread.
class Mailbox {
 public:
  using Ticket = MessageTicket;

  explicit Mailbox(const GroupContext& context);

  /// False if part of it was put aside.
  bool send(std::int64_t to, const kernels::Tensor& x, const char* label);
  Ticket post_receive(std::int64_t from, const kernels::Tensor& x, const char* label);
  /// Blocks until the receives are filled. Throws CommError at the deadline, on another size or dtype than
  /// was sent, or if the world ended.
  void wait(std::span<const Ticket> receives, double deadline_seconds);
  /// The receive's tensor no longer exists; its message will be discarded.
  void drop(const Ticket& receive);

  /// Sends as much of the data put aside as has room. True if nothing is left or the world has ended.
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
    std::deque<std::vector<std::byte>> aside;  ///< messages, or the rest of one, waiting for room
    std::int64_t aside_done = 0;               ///< bytes of the first one that are in the ring
    std::uint64_t received = 0;                ///< number of filled receives from this peer
    std::deque<Receive> receives;
  };
  Peer& peer(std::int64_t rank) { return peers_[static_cast<std::size_t>(rank)]; }
  std::int64_t push(std::int64_t to, const std::byte* from, std::int64_t bytes);
  bool push_aside(std::int64_t to);
  /// Reads the data that has arrived from a peer.
  void take(std::int64_t from);
  void check_header(std::int64_t from, const Receive& receive, const OpRecord& sent) const;
  bool filled(const Ticket& t) const { return peers_[static_cast<std::size_t>(t.peer)].received > t.index; }

  const GroupContext& context_;
  std::vector<Peer> peers_;
  std::mutex send_mutex_;
  std::atomic<bool> anything_aside_{false};
};

}  // namespace trainerd::parallel
