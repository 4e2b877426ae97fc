#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run/supervise/hang_limits.h"
#include "parallel/group/members.h"

namespace trainerd::core::run {

/// What holds a run up.
struct HangVerdict {
  /// "stopped", "asleep", "spinning", "disk", "data" of a rank; "link": a group of several nodes, all of
  /// whose members have entered a collective, does not come to its end; "stuck": the same on one node;
  /// "mismatch": members of a group called different operations; "deadlock": ranks wait for each other;
  /// "meet": ranks wait, before the first step, for members of a group to come to it; only told.
  std::string kind;
  bool restart = true;  ///< the workers start again; false: it is only reported
  bool own = false;     ///< in a step, and by nothing from outside: it would come again there
  std::vector<std::int64_t> ranks = {};   ///< that hold the others up, or take part in it
  std::string message = {};               ///< one line
  std::vector<std::string> details = {};  ///< lines of the other ranks that do
  double deadline_seconds = 0;            ///< that the first rank has passed (HangLimits)
};

/// The verdict on what is seen of the ranks: of all of them, or of those that could be asked. None: nothing
/// is hung, or these are too few to judge by.
///
/// A rank that waits for others is not the cause. It waits for the members of the group that have not entered
/// the collective, or for both its pipeline neighbours where it waits for a message. The cause is a rank at
/// the end of such a chain that makes no progress (HangLimits).
std::optional<HangVerdict> judge(std::span<const RankSight> sights, const parallel::Layout& layout,
                                 const parallel::GroupNeeds& needs, const HangLimits& limits);

/// "rank 37 (node 4, tp 5, pp 3, dp 0)": the axes that have several ranks, and the node of several.
std::string place_of(std::int64_t rank, std::int64_t node, bool several_nodes,
                     const parallel::Layout& layout);

}  // namespace trainerd::core::run
