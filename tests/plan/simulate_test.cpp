// Simulated steps whose ranks' work takes more or less time than planned.

#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "core/plan/simulate/step_simulation.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"

using namespace trainerd;

namespace {

/// How much longer the mean step is with jitter.
double slowdown(std::int64_t ep, std::int64_t cp) {
  const std::int64_t dp = 8 / cp;
  const core::job::JobSpec job = core::spec::parse_job(
      "name: jitter\nsteps: 1\ndata: {format: synthetic}\ndevice: cuda\ncluster: {preset: dgx-h100}\n"
      "model: {layers: 2, hidden: 1024, heads: 8, ffn: 1024, vocab: 1024, seq_len: 1024, "
      "experts: {count: 8, per_token: 2}}\n"
      "batch: {global: 128, micro: 1}\noptimizer: {lr: 1.0e-3, schedule: {kind: constant}}\n"
      "parallel: {zero: 1, dp: " +
          std::to_string(dp) + ", cp: " + std::to_string(cp) + ", ep: " + std::to_string(ep) + "}\n",
      "jitter.yaml");
  const auto made =
      core::plan::simulate_step(job, core::spec::job_topology(job), {.jitter = 0.2, .steps = 8, .seed = 3});
  const double mean = std::accumulate(made.step_seconds.begin(), made.step_seconds.end(), 0.0) /
                      static_cast<double>(made.step_seconds.size());
  return mean / made.plan.time.step_seconds;
}

}  // namespace

TEST_CASE("replicas that share experts wait for the slowest of them in every layer", "[simulate]") {
  // Of 8 factors with deviation 0.2 the largest is 1.28 on average. Without ep a replica waits for others
  // only at the end, when its factors have averaged out.
  const double alone = slowdown(1, 1);
  CHECK(alone > 1.0);
  CHECK(alone < 1.15);
  for (const std::int64_t ep : {4, 8}) {
    CAPTURE(ep);
    const double shared = slowdown(ep, 1);
    CHECK(shared > alone + 0.05);
    CHECK(shared < 1.35);
  }
  // Ranks of a context-parallel group wait for each other anyway.
  CHECK(slowdown(2, 2) == Approx(slowdown(1, 2)).epsilon(0.05));
  CHECK(slowdown(4, 2) > slowdown(2, 2) + 0.03);
}
