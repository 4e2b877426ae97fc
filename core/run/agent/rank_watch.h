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

/// Reads the pages of a node's ranks ten times per second, and /proc for ranks whose page has not changed. It
/// must not outlive the segment.
class RankWatch {
 public:
  /// `usual`: by the rank's place in the node, from the previous attempt; empty if there was none.
  RankWatch(const base::Segment& flights, const NodeRanks& here, std::int64_t node,
            std::vector<UsualTimes> usual = {});

  /// Readable when the next look is due.
  int event_fd() const { return timer_.get(); }
  /// Reads all pages. `pids` is by the rank's place in the node; 0: the process has ended.
  void look(const std::vector<pid_t>& pids);
  /// The state of each rank at the last look, with its ring as it is now.
  std::vector<RankSight> sights() const;
  /// The same without rings.
  std::vector<RankSight> pages() const;
  /// By the rank's place in the node: usual times, for the next attempt.
  std::vector<UsualTimes> usual() const;

 private:
  RankSight sight(std::int64_t place, std::span<const parallel::FlightRecord> ring) const;

  const base::Segment& flights_;
  NodeRanks here_;
  std::vector<UsualTimes> usual_;
  std::int64_t node_;
  base::UniqueFd timer_;
  std::deque<StillClock> clocks_;  ///< by the rank's place in the node
};

}  // namespace trainerd::core::run
