// The planned stall of training by a GPU's snapshot, from its bytes and the rate of the link to the host.

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "core/plan/predict/plan.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"

using namespace trainerd;

namespace {

/// A model of 6.7e9 parameters on a node of eight, with `global` sequences of 4096 tokens per step.
core::plan::Plan plan_of_7b(const std::string& cluster, int global, const std::string& more = "") {
  const core::job::JobSpec job = core::spec::parse_job(
      "model: {layers: 32, hidden: 4096, heads: 32, kv_heads: 32, ffn: 11008, vocab: 32000, seq_len: 4096}\n"
      "steps: 1\nprecision: bf16\ndata: {format: synthetic}\ncluster: {preset: " +
          cluster + "}\nbatch: {global: " + std::to_string(global) +
          ", micro: 1}\nparallel: {dp: 8, zero: 1}\nrecompute: {kind: selective}\n" + more,
      "job.yaml");
  return core::plan::make_plan(job, core::spec::job_topology(job));
}

}  // namespace

TEST_CASE("a snapshot of a 7B model stops training for less than 1% of a step", "[plan]") {
  // The layout's smallest step: one sequence per device. On a B200 four, as it computes more than twice as
  // fast and copies no faster.
  for (const auto& [cluster, global] : {std::pair{"dgx-h100", 8}, {"dgx-h200", 8}, {"dgx-b200", 32}}) {
    const core::plan::Plan plan = plan_of_7b(cluster, global);
    CAPTURE(cluster, plan.time.step_seconds, plan.checkpoint.snapshot_seconds);
    REQUIRE(plan.timed);
    // An eighth of the fp32 master weights and two moments over PCIe.
    CHECK(plan.checkpoint.snapshot_seconds == Approx(12 * 6.74e9 / 8 / 55.4e9).epsilon(0.01));
    CHECK(plan.checkpoint.stall_seconds < 0.01 * plan.time.step_seconds);
    CHECK_THAT(core::plan::plan_text(plan, 0),
               Catch::Contains("beside the step") && !Catch::Contains("stall"));
  }
}

TEST_CASE("the part of a snapshot's copy that is not done before the update is a stall", "[plan]") {
  const core::plan::Plan beside = plan_of_7b("dgx-h100", 8),
                         alone = plan_of_7b("dgx-h100", 8, "checkpoint: {async: false}\n");
  CHECK(alone.checkpoint.stall_seconds == alone.checkpoint.snapshot_seconds);
  CHECK_THAT(core::plan::plan_text(alone, 0), Catch::Contains("checkpoint stall"));
  // A link with a tenth of the rate.
  core::job::JobSpec job = beside.job;
  parallel::Topology slow = core::spec::job_topology(job);
  slow.host_bytes_per_second /= 10;
  const core::plan::Plan slowed = core::plan::make_plan(job, slow);
  CHECK(slowed.checkpoint.stall_seconds ==
        Approx(slowed.checkpoint.snapshot_seconds - slowed.time.step_seconds +
               slowed.time.mean[base::LedgerPart::optimizer]));
  CHECK(slowed.checkpoint.stall_seconds > 0);
}
