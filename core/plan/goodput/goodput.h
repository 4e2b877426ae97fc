#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

// What interruptions cost a long job: goodput is useful training over wall time. One process, told two ways:
// a closed form here, and a simulation of its events in goodput_simulation.h.

namespace trainerd::core::plan {

inline constexpr double kSecondsPerDay = 24 * 3600;
inline constexpr std::int64_t kMaxScenarioSteps = 1'000'000'000;

/// What an interruption takes away, and so which copies of the training state outlive it.
enum class FailureScope : std::uint8_t {
  process,  ///< a process ends; its node and the node's memory stay
  node,     ///< a node is lost, and another takes its place
  several,  ///< a node is lost, and copies in the memory of others with it
};

struct FailureKind {
  std::string name;
  FailureScope scope = FailureScope::process;
  double per_node_second = 0;  ///< of one node of the job: a Poisson process
};

/// Copies of the state in one place, from the nearest to the safest.
struct CheckpointTier {
  std::string name;
  FailureScope survives = FailureScope::process;  ///< this scope and lesser ones
  double save_seconds = 0;                        ///< checkpoint stall of a save
  double write_seconds = 0;                       ///< from then until the copy counts; training goes on
  double restore_seconds = 0;
  std::int64_t every_steps = 0;  ///< 0: the optimum
};

/// A job on its machines. Seconds are wall time.
struct FailureScenario {
  std::int64_t nodes = 1;
  double step_seconds = 1;
  std::vector<FailureKind> kinds;
  /// Each survives more than the one before; the last survives everything.
  std::vector<CheckpointTier> tiers;
  double detection_seconds = 0;   ///< from the failure until the agents act
  double restart_seconds = 0;     ///< processes and communicators anew, up to the restore
  double planned_per_second = 0;  ///< interruptions by plan, which save first
  double planned_seconds = 0;     ///< of one, before the restart
  std::int64_t spares = 0;        ///< nodes that stand by; a lost node becomes one when it is back
  double replace_seconds = 0;     ///< until a lost node is back or replaced; 0: there is always another
  /// By missing nodes: the share of the full speed at which the job goes on, falling from 1. Where the table
  /// ends the job waits for a node. {1}: not elastic.
  std::vector<double> speed_by_missing = {1};
};

/// Shares of wall time; they sum to 1.
struct GoodputShares {
  double useful = 0;      ///< the goodput
  double reduced = 0;     ///< speed that missing replicas do not give
  double checkpoint = 0;  ///< checkpoint stall
  double lost = 0;        ///< work since the restored copy, done again
  double detection = 0;
  double restart = 0;  ///< with the restore
  double waiting = 0;  ///< for a node
  double planned = 0;
};
inline constexpr std::size_t kGoodputParts = 8;
using GoodputPart = double GoodputShares::*;
struct NamedGoodputPart {
  const char* name;
  GoodputPart part;
};
inline constexpr std::array<NamedGoodputPart, kGoodputParts> kNamedGoodputParts{{
    {"useful", &GoodputShares::useful},
    {"reduced", &GoodputShares::reduced},
    {"checkpoint", &GoodputShares::checkpoint},
    {"lost", &GoodputShares::lost},
    {"detection", &GoodputShares::detection},
    {"restart", &GoodputShares::restart},
    {"waiting", &GoodputShares::waiting},
    {"planned", &GoodputShares::planned},
}};

/// A tier as it is used: interruptions that nothing nearer survives restore from it.
struct TierPlan {
  CheckpointTier tier;             ///< with `every_steps` filled in, a whole multiple of the tier's before
  bool optimum = false;            ///< `every_steps` is Daly's
  double failures_per_second = 0;  ///< that restore from it, while training
};

/// Interruptions a second of the whole job, planned ones not counted; mean time between them is its inverse.
double failures_per_second(const FailureScenario& scenario);

/// Throws SpecError when the scenario contradicts itself: each problem with what to set.
void check_scenario(const FailureScenario& scenario);

/// The tiers that are used, with their cadence. A tier that no interruption restores from is left out unless
/// its cadence was given.
std::vector<TierPlan> plan_tiers(const FailureScenario& scenario);

struct GoodputEstimate {
  GoodputShares shares;
  std::string caveat;  ///< why the closed form may be off by more than a point; empty where it holds
};

/// The steady state, by renewal theory. Tiers nest: a segment of the safer tier is many of the nearer one's,
/// with its failures and their repair inside; a segment of P seconds under failures of rate r is tried
/// exp(rP) times on average. Missing nodes are a birth-death chain.
GoodputEstimate closed_form_goodput(const FailureScenario& scenario);

}  // namespace trainerd::core::plan
