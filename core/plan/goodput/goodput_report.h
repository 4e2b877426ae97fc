#pragma once

#include <string>

#include "core/plan/goodput/goodput.h"
#include "core/plan/goodput/goodput_simulation.h"

namespace trainerd::core::plan {

struct GoodputReport {
  std::string job, cluster;
  std::int64_t devices = 0;  ///< ranks of the job
  FailureScenario scenario;
  SimulationOptions options;
  GoodputEstimate closed_form;
  SimulatedGoodput simulated;
};

/// Computes the scenario both ways: closed form and simulation.
GoodputReport make_goodput_report(std::string job, std::string cluster, std::int64_t devices,
                                  const FailureScenario& scenario, const SimulationOptions& options);

/// Human-readable: interruptions by kind, checkpoints by tier, the shares of time of both side by side.
std::string goodput_text(const GoodputReport& report);
/// One JSON object on one line: `goodput` (simulated), `confidence_95`, `runs_5_to_95`, `closed_form` and
/// `simulated` shares, `mtbf_seconds`, `interruptions` by kind, `checkpoints`, and the inputs.
std::string goodput_json(const GoodputReport& report);

}  // namespace trainerd::core::plan
