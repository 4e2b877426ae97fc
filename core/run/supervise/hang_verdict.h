#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run/supervise/hang_limits.h"
#include "parallel/group/members.h"

namespace trainerd::core::run {

/// The cause of a hang.
struct HangVerdict {
  /// "stopped", "asleep", "spinning", "disk", "data" of a rank; "link": a group of several nodes, all of
  /// whose members have entered a collective, does not come to its end; "stuck": the same on one node;
  /// "mismatch": members of a group called different operations; "deadlock": ranks wait for each other;
  /// "meet": ranks wait, before the first step, for members of a group to come to it; only told.
  std::string kind;
  bool restart = true;  ///< the workers start again; false: only reported
  bool own = false;     ///< caused by the computation in a step, so it would happen there again
  std::vector<std::int64_t> ranks = {};   ///< ranks that cause the hang or are part of it
  std::string message = {};               ///< one line
  std::vector<std::string> details = {};  ///< lines about further ranks
  double deadline_seconds = 0;            ///< limit that the first rank has exceeded (HangLimits)
};

/// Judges the ranks' states: of all ranks, or of those that answered. None if no rank hangs, or too few have
/// answered to judge.
///
/// A rank that waits for others is not the cause. It waits for the members of its group that have not entered
/// the collective, or for both its pipeline neighbours if it waits for a message. The cause is a rank at the
/// end of such a chain that makes no progress (HangLimits).
std::optional<HangVerdict> judge(std::span<const RankSight> sights, const parallel::Layout& layout,
                                 const parallel::GroupNeeds& needs, const HangLimits& limits);

/// "rank 37 (node 4, tp 5, pp 3, dp 0)": with the axes larger than 1 and, if there are several nodes, the
/// node.
std::string place_of(std::int64_t rank, std::int64_t node, bool several_nodes,
                     const parallel::Layout& layout);

}  // namespace trainerd::core::run
