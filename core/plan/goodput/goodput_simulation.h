#pragma once

#include "core/plan/goodput/goodput.h"

namespace trainerd::core::plan {

struct SimulationOptions {
  double weeks = 8;  ///< wall time of one run
  std::int64_t runs = 100;
  std::uint64_t seed = 0;
};

struct SimulatedGoodput {
  GoodputShares shares;                ///< mean of the runs
  double mean_low = 0, mean_high = 0;  ///< 95% confidence interval of the mean goodput
  double run_low = 0, run_high = 0;    ///< nine of ten runs are between: what one job may meet
  double interruptions_per_run = 0;    ///< unexpected
  double planned_per_run = 0;
};

/// Runs the scenario event by event: failures strike while the job trains, saves and starts again (processes
/// fail only while they run, nodes always), and interrupt a restart as they interrupt training. Starts with
/// every node there and a copy in every tier. Random numbers depend on (seed, run, draw) alone. Throws
/// SpecError as `check_scenario`, and when `options` are out of range.
SimulatedGoodput simulate_goodput(const FailureScenario& scenario, const SimulationOptions& options);

}  // namespace trainerd::core::plan
