#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/gloo/links.h"
#include "parallel/comm/op_record.h"

namespace trainerd::parallel {

/// Time left until `deadline` (base::monotonic_seconds), at least 1 ms: Gloo treats 0 as no limit.
std::chrono::milliseconds gloo_timeout(double deadline);

/// Engine of EngineCommunicator over Gloo's point-to-point messages.
///
/// Every collective begins with a frame of fixed size from each member to every other one. It announces the
/// operation and holds all data of a small all_reduce. It shows which ranks are missing and which call a
/// different operation before any buffer is posted whose size the other side may not expect (Gloo ends the
/// process on a mismatch). Large data is sent directly between each two members: the volume is that of a
/// ring, and summands are added in rank order.
class GlooEngine {
 public:
  GlooEngine(GlooWorld::Links& links, std::shared_ptr<gloo::Context> context, std::string name,
             std::vector<std::int64_t> ranks, const GlooOptions& options);
  ~GlooEngine();
  GlooEngine(const GlooEngine&) = delete;
  GlooEngine& operator=(const GlooEngine&) = delete;

  std::int64_t rank() const { return context_->rank; }
  std::int64_t size() const { return context_->size; }
  std::int64_t world_rank() const { return world_rank(rank()); }
  const std::string& name() const { return name_; }
  double deadline_seconds() const { return options_.deadline_seconds; }
  std::string describe(const OpRecord& record) const;

  void run(const Operation&);
  std::string missing() const;

  bool send(std::int64_t to, const kernels::Tensor& x, const char* label);
  MessageTicket post_receive(std::int64_t from, const kernels::Tensor& x, const char* label);
  void wait(std::span<const MessageTicket> receives, double deadline_seconds);
  /// Ends the world unless the receive is filled, because the sender has no other way to know.
  void drop(const MessageTicket& receive);
  /// Nothing to push: `send_out` completes the sends.
  bool push(const std::atomic<bool>&) { return true; }
  void wake() {}

  void throw_if_ended(const OpRecord& record) const;
  [[noreturn]] void fail(const std::string& text) const;
  void abort(const std::string& why) const { links_.end(why); }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  /// A message of one size from each member to every other one. A rank that has received all of round k + 1
  /// knows that all ranks have received its round k. So it alternates between two send buffers, which are
  /// free without a wait that a dead peer could prolong.
  struct Round {
    std::int64_t bytes = 0;
    std::uint64_t count = 0;
    std::vector<std::byte> memory;  ///< messages of the members, then two send buffers
    std::vector<Buffer> in;         ///< by member
    std::array<std::vector<Buffer>, 2> out;
    std::byte* received(std::int64_t member) { return memory.data() + member * bytes; }
  };
  /// Part of a tensor that is sent to or received from a member.
  struct Piece {
    std::int64_t peer;
    std::byte* data;
    std::int64_t bytes;
  };
  /// The range of a tensor that one member reduces.
  struct Share {
    std::int64_t begin;
    std::int64_t bytes;
  };
  struct Receive {
    OpRecord mine;
    OpRecord sent;  ///< filled by the network
    std::byte* data = nullptr;
    Buffer header;
  };
  /// A message that `send` has accepted and that has not left this process yet.
  struct Outgoing {
    OpRecord record;
    std::vector<std::byte> data;
    Buffer header;
    Buffer payload;  ///< null when there are no bytes
    std::int64_t peer;
  };

  std::int64_t world_rank(std::int64_t member) const { return ranks_[static_cast<std::size_t>(member)]; }
  std::string name_of(std::int64_t member) const { return "rank " + std::to_string(world_rank(member)); }
  Buffer buffer(void* data, std::int64_t bytes) const;
  Round make_round(std::int64_t bytes) const;
  /// The buffer for this rank's message of the next round.
  std::byte* prepare(Round&, const OpRecord&, double deadline);
  void meet(Round&, const OpRecord&, double deadline);
  void exchange_frames(const Operation&);
  void transfer(const Operation&, std::span<const Piece> sends, std::span<const Piece> receives);
  void wait_received(gloo::transport::UnboundBuffer&, std::int64_t from, const OpRecord&, double deadline);
  void wait_sent(gloo::transport::UnboundBuffer&, std::int64_t to, const OpRecord&, double deadline);
  [[noreturn]] void lost(std::int64_t member, const OpRecord&, const std::string& why) const;

  void all_reduce(const Operation&);
  void all_to_all(const Operation&);
  void broadcast(const Operation&);
  /// out = the sum over members of shares_[rank()] of their x.
  void reduce_shares(const Operation&, std::byte* out);
  /// Gathers every member's share of `all` from its owner.
  void gather_shares(const Operation&, std::byte* all);
  /// Sets shares_ to parts of `part_bytes`, of `bytes` in total.
  void cut(std::int64_t part_bytes, std::int64_t bytes);
  void reduce(const Operation&, std::byte* out, std::int64_t bytes);
  void send_out();

  GlooWorld::Links& links_;
  std::shared_ptr<gloo::Context> context_;
  std::string name_;
  std::vector<std::int64_t> ranks_;
  GlooOptions options_;

  Round frames_;  ///< an OpRecord, and the data of a small all_reduce
  Round confirmations_;
  std::vector<std::byte> scratch_;        ///< one chunk per member
  std::vector<const std::byte*> inputs_;  ///< by member
  std::vector<Share> shares_;             ///< by member
  std::vector<Piece> sends_, takes_;
  std::uint64_t slot_ = 0;  ///< Gloo's slot number, for collectives
  double begin_seconds_ = 0;
  std::atomic<std::int64_t> waiting_for_{-1};  ///< the member that an operation waits for; -1: none

  std::vector<std::uint64_t> sent_;      ///< number of messages to each member
  std::vector<std::uint64_t> received_;  ///< number of receives posted for each member
  std::map<std::pair<std::int64_t, std::uint64_t>, Receive> receives_;

  std::mutex outgoing_mutex_;
  std::condition_variable outgoing_changed_;
  std::deque<std::unique_ptr<Outgoing>> outgoing_;
  bool stop_ = false;
  std::thread sender_;  ///< waits until messages have left; started on first use
};

}  // namespace trainerd::parallel
