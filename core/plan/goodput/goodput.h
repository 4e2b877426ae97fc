#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

// Goodput of a long job under interruptions: useful training over wall time. The same process is computed in
// two ways: by a closed form here, and by a discrete-event simulation in goodput_simulation.h.

namespace trainerd::core::plan {

inline constexpr double kSecondsPerDay = 24 * 3600;
inline constexpr std::int64_t kMaxScenarioSteps = 1'000'000'000;

/// What an interruption destroys. This decides which copies of the training state survive.
enum class FailureScope : std::uint8_t {
  process,  ///< a process ends; its node and the node's memory survive
  node,     ///< a node is lost and another one replaces it
  several,  ///< a node is lost together with copies in other nodes' memory
};

struct FailureKind {
  std::string name;
  FailureScope scope = FailureScope::process;
  double per_node_second = 0;  ///< rate per node of the job; failures are a Poisson process
};

/// Copies of the training state in one place. Tiers go from the nearest to the safest.
struct CheckpointTier {
  std::string name;
  FailureScope survives = FailureScope::process;  ///< survives failures of this and smaller scopes
  double save_seconds = 0;                        ///< checkpoint stall per save
  double write_seconds = 0;  ///< from the save until the copy can be restored; training continues
  double restore_seconds = 0;
  std::int64_t every_steps = 0;  ///< interval between saves; 0: the optimum
};

/// A job on its machines. All seconds are wall time.
struct FailureScenario {
  std::int64_t nodes = 1;
  double step_seconds = 1;
  std::vector<FailureKind> kinds;
  /// Each tier survives more than the one before; the last survives everything.
  std::vector<CheckpointTier> tiers;
  double detection_seconds = 0;   ///< from the failure until the agents react
  double restart_seconds = 0;     ///< to start processes and communicators, up to the restore
  double planned_per_second = 0;  ///< planned interruptions, which save first
  double planned_seconds = 0;     ///< length of a planned interruption, before the restart
  std::int64_t spares = 0;        ///< standby nodes; a lost node becomes a spare when it returns
  double replace_seconds = 0;     ///< until a lost node is back or replaced; 0: no wait
  /// By number of missing nodes: fraction of full speed at which the job continues, falling from 1. With more
  /// missing nodes than entries the job waits for a node. {1}: not elastic.
  std::vector<double> speed_by_missing = {1};
};

/// Fractions of wall time; they sum to 1.
struct GoodputShares {
  double useful = 0;      ///< goodput
  double reduced = 0;     ///< speed lost to missing replicas
  double checkpoint = 0;  ///< checkpoint stall
  double lost = 0;        ///< work since the restored copy, which is repeated
  double detection = 0;
  double restart = 0;  ///< includes the restore
  double waiting = 0;  ///< waiting for a node
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

/// A tier in use. Interruptions that no nearer tier survives restore from it.
struct TierPlan {
  CheckpointTier tier;             ///< with `every_steps` filled in: a multiple of the previous tier's
  bool optimum = false;            ///< `every_steps` is Daly's optimum
  double failures_per_second = 0;  ///< rate of failures that restore from this tier, while training
};

/// Unplanned interruptions per second of the whole job. The mean time between them is the inverse.
double failures_per_second(const FailureScenario& scenario);

/// Throws SpecError for a contradictory scenario. The message lists each problem and what to set.
void check_scenario(const FailureScenario& scenario);

/// The tiers in use, with their save interval. A tier that no interruption restores from is left out unless
/// its interval was given.
std::vector<TierPlan> plan_tiers(const FailureScenario& scenario);

struct GoodputEstimate {
  GoodputShares shares;
  std::string caveat;  ///< why the closed form may be off by more than a percentage point; empty if it holds
};

/// The steady state by renewal theory. Tiers nest: a segment of a safer tier consists of many segments of the
/// nearer one, with their failures and repairs. A segment of P seconds under failures of rate r is tried
/// exp(rP) times on average. Missing nodes are a birth-death chain.
GoodputEstimate closed_form_goodput(const FailureScenario& scenario);

}  // namespace trainerd::core::plan
