#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Time of each action in units of the caller's choice. A fused backward costs both gradients; reductions,
/// which run beside the schedule, nothing.
struct ActionCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;  ///< from a send to the arrival of its message
  double of(ActionKind kind) const;
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;  ///< of a receive: from when it is posted until its message is there
};

/// A rank that cannot go on.
struct StuckRank {
  int rank = 0;
  Action action{};          ///< what it would do next
  Action waits_for{};       ///< what has not happened
  int waits_for_rank = -1;  ///< whose list should have done it; -1: it is in no list
};

struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;  ///< in list order
  double makespan = 0;
  double transfer = 0;           ///< of every message, from its send on
  double bubble_fraction = 0;    ///< time in which a rank computes nothing, of ranks x makespan
  std::vector<StuckRank> stuck;  ///< empty unless the lists deadlock; times then cover what could run
};

/// Runs the lists of all ranks, each in its order. Sends are buffered. A receive is posted when its turn
/// comes and waited for by the computation that uses it; yet lists count as deadlocked unless they also run
/// when receives block. Lists without transfers wait for the computations that theirs depend on, and as long
/// as a transfer takes beyond those of other ranks.
Timeline timeline(std::span<const std::vector<Action>> ranks, const ActionCosts& costs);

/// One line for each stuck rank: "rank 1 is at recv_forward of chunk 1, microbatch 0 and waits for ... of
/// rank 0".
std::string describe(std::span<const StuckRank> stuck);

}  // namespace trainerd::parallel
