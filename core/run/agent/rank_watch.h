#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "core/run/supervise/still_clock.h"
#include "core/run/worker/rank_world.h"
#include "kernels/base/fd.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

/// Looks at the pages of a node's ranks ten times per second, and at the processes of those that have not
/// changed. It outlives neither the segment nor the processes' attempt.
class RankWatch {
 public:
  /// `usual` by rank of the node, of the attempt before; empty: there was none.
  RankWatch(const base::Segment& flights, const NodeRanks& here, std::int64_t node,
            std::vector<UsualTimes> usual = {});

  /// Readable when a look is due.
  int event_fd() const { return timer_.get(); }
  /// Takes the look. `pids` by rank of the node; 0: it has ended.
  void look(const std::vector<pid_t>& pids);
  /// What was seen by then, the rings included, as they are now.
  std::vector<RankSight> sights() const;
  /// The same without rings.
  std::vector<RankSight> pages() const;
  /// By rank of the node: what the next attempt's are held against.
  std::vector<UsualTimes> usual() const;

 private:
  RankSight sight(std::int64_t place, std::span<const parallel::FlightRecord> ring) const;

  const base::Segment& flights_;
  NodeRanks here_;
  std::vector<UsualTimes> usual_;
  std::int64_t node_;
  base::UniqueFd timer_;
  std::deque<StillClock> clocks_;  ///< by rank of the node
};

}  // namespace trainerd::core::run
