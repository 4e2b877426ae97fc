#pragma once

#include "core/plan/goodput/goodput.h"

namespace trainerd::core::plan {

struct SimulationOptions {
  double weeks = 8;  ///< wall time of one run
  std::int64_t runs = 100;
  std::uint64_t seed = 0;
};

struct SimulatedGoodput {
  GoodputShares shares;                ///< mean over the runs
  double mean_low = 0, mean_high = 0;  ///< 95% confidence interval of the mean goodput
  double run_low = 0, run_high = 0;    ///< 5th and 95th percentile of the runs: the range for a single job
  double interruptions_per_run = 0;    ///< unplanned ones
  double planned_per_run = 0;
};

/// Runs the scenario event by event. Failures strike during training, saves and restarts (process failures
/// only while processes run, node failures always), and a restart can be interrupted like training. A run
/// starts with all nodes present and a copy in every tier. Random numbers depend only on (seed, run, draw).
/// Throws SpecError like `check_scenario`, and for options out of range.
SimulatedGoodput simulate_goodput(const FailureScenario& scenario, const SimulationOptions& options);

}  // namespace trainerd::core::plan
