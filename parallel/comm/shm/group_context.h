#pragma once

#include <string>
#include <vector>

#include "parallel/comm/shm/region.h"

namespace trainerd::parallel {

/// One rank's view of one group: its shared memory, the world ranks of its members, and its deadlines.
struct GroupContext {
  WorldRegion world;
  GroupRegion group;
  std::string name;                 ///< name of the group, for errors
  std::vector<std::int64_t> ranks;  ///< world rank of each member
  std::int64_t rank = 0;            ///< index of this rank in `ranks`
  double deadline_seconds = 0;      ///< longest wait for a peer
  double spin_seconds = 0;          ///< time to poll before sleeping

  std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
  std::int64_t world_rank(std::int64_t member) const { return ranks[static_cast<std::size_t>(member)]; }
  Notifier& notifier(std::int64_t member) const { return world.notifier(world_rank(member)); }
  Notifier& notifier() const { return notifier(rank); }

  /// `all_reduce (sum) "gradients" of 8 bytes fp32 (number 7 of group dp)`
  std::string describe(const OpRecord& record) const;
  /// World ranks that have not entered meeting `meeting`: "rank 3, rank 5". Empty if all have.
  std::string missing(std::uint64_t meeting) const;

  /// Ends the world with `text` and throws it as CommError.
  [[noreturn]] void fail(const std::string& text) const;
  /// Throws the CommError of an operation that an abort ended. `missing` as above.
  [[noreturn]] void throw_ended(const OpRecord& record, const std::string& missing) const;
  void throw_if_ended(const OpRecord& record) const;
};

}  // namespace trainerd::parallel
