#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Time of each action, in any unit. A fused backward costs both gradients. Reductions cost nothing, because
/// they overlap the schedule. Two computations that take turns begin and end together and cost the sum.
struct ActionCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;  ///< from a send to the arrival of its message
  double of(ActionKind kind) const;
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;  ///< of a receive: from its post to the arrival of its message
};

/// A rank that cannot continue.
struct StuckRank {
  int rank = 0;
  Action action{};          ///< its next action
  Action waits_for{};       ///< the action it waits for
  int waits_for_rank = -1;  ///< rank whose list contains that action; -1: no list does
};

struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;  ///< in list order
  double makespan = 0;
  double transfer = 0;           ///< time of every message, from the end of its send
  double bubble_fraction = 0;    ///< fraction of ranks x makespan in which ranks compute nothing
  std::vector<StuckRank> stuck;  ///< empty unless the lists deadlock; times then cover the actions that ran
};

/// Simulates the lists of all ranks, each in its order. Sends are buffered. A receive is posted at its place
/// in the list, and the computation that uses it waits for it. Lists still count as deadlocked unless they
/// also run with blocking receives. In lists without transfers, computations wait for the computations they
/// depend on, plus the transfer time if those are on another rank.
Timeline timeline(std::span<const std::vector<Action>> ranks, const ActionCosts& costs);

/// One line for each stuck rank: "rank 1 is at recv_forward of chunk 1, microbatch 0 and waits for ... of
/// rank 0".
std::string describe(std::span<const StuckRank> stuck);

}  // namespace trainerd::parallel
