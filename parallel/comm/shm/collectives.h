#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "parallel/comm/shm/group_context.h"
#include "parallel/comm/shm/mailbox.h"

namespace trainerd::parallel {

/// The collectives of one rank in one group. Each runs to its end in the calling thread; one thread at a
/// time.
///
/// Data passes in chunks through the members' slots. A step is: fill my slot, meet (all slots are filled),
/// read the other slots. Steps alternate between two slots. Before a rank fills a slot again it has met the
/// others in the step between, and they entered that meeting after reading the slot. So one meeting per step
/// is enough. Summands are added in rank order on every rank, so all_reduce has the same bits as
/// reduce_scatter followed by all_gather.
class Collectives {
 public:
  /// `mailbox` is flushed while this rank waits.
  Collectives(const GroupContext& context, Mailbox& mailbox);

  /// Throws CommError if a peer is late or called another operation, or if the world ended.
  void run(const Operation&);
  /// Number of the last meeting this rank entered. Any thread.
  std::uint64_t meeting() const { return meeting_.load(std::memory_order_relaxed); }

 private:
  void meet(const Operation&);
  void compare_records(const OpRecord& mine);
  void all_reduce(const Operation&);
  void all_reduce_small(const Operation&);
  void all_gather(const Operation&);
  void reduce_scatter(const Operation&);
  void all_to_all(const Operation&);
  void broadcast(const Operation&);
  /// This step's slot of a member.
  std::byte* slot(std::int64_t member) const { return context_.group.slot(step_, member); }
  void reduce(const Operation&, std::byte* out, std::int64_t bytes);

  const GroupContext& context_;
  Mailbox& mailbox_;
  std::vector<const std::byte*> inputs_;  ///< inputs of a reduction, by rank
  std::atomic<std::uint64_t> meeting_{0};
  std::uint64_t step_ = 0;
  bool compared_ = false;  ///< this operation's records have been compared
};

}  // namespace trainerd::parallel
