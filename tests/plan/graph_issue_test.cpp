// When a plan uses CUDA graphs, and their cost.

#include <catch2/catch.hpp>
#include <string>

#include "core/plan/predict/plan.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"

using namespace trainerd;

namespace {

core::plan::Plan graphs_plan(const std::string& model, const std::vector<std::string>& overrides = {}) {
  const core::job::JobSpec job = core::spec::parse_job(
      "name: graphs\ndevice: cuda\nmodel: " + model +
          "\nbatch: {global: 8, micro: 4}\nprecision: bf16\noptimizer: {lr: 1.0e-3}\nsteps: 10\n"
          "data: {format: synthetic}\ncluster: {preset: dgx-h200}\n",
      "graphs.yaml", overrides);
  return core::plan::make_plan(job, core::spec::job_topology(job));
}

constexpr const char* kSmallModel =
    "{layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 704, vocab: 512, seq_len: 128}";

}  // namespace

TEST_CASE("a small model's step is planned with graphs, and faster than without", "[graph_issue]") {
  const core::plan::Plan with = graphs_plan(kSmallModel),
                         without = graphs_plan(kSmallModel, {"cuda_graphs=off"});
  const core::plan::GraphIssue& g = with.graphs;
  CHECK(g.used);
  CHECK_FALSE(without.graphs.used);
  CHECK(g.issue_seconds == Approx(static_cast<double>(g.calls) * 3e-6));
  // Forward and backward of two microbatches without collectives are four graphs. Outside of graphs five
  // tensors per microbatch and the sum of the loss weights are written.
  CHECK(g.launches == 4 + 2 * 5 + 1);
  CHECK(g.graph_issue_seconds ==
        Approx(15 * 3e-6 + static_cast<double>(g.calls - 11) * core::plan::kComparedCallSeconds));
  CHECK(g.issue_seconds > 0.25 * g.device_seconds);
  CHECK(with.time.step_seconds < without.time.step_seconds);
  CHECK(with.time.step_seconds >= g.device_seconds);
  CHECK(with.time.mean.sum() == Approx(with.time.step_seconds));
  CHECK_THAT(core::plan::plan_text(with, 0),
             Catch::Contains("CUDA graphs: 15 launches per step in place of " + std::to_string(g.calls)));
  CHECK_THAT(core::plan::plan_text(without, 0), !Catch::Contains("CUDA graphs"));
  CHECK_THAT(core::plan::plan_json(with, 0), Catch::Contains("cuda_graphs"));
}

TEST_CASE("a large model's step is planned call by call", "[graph_issue]") {
  const core::plan::Plan plan = graphs_plan("{preset: llama-3-8b, layers: 2}", {"model.seq_len=4096"});
  CHECK_FALSE(plan.graphs.used);
  CHECK(plan.graphs.issue_seconds > 0);
  CHECK(plan.graphs.issue_seconds < 0.25 * plan.graphs.device_seconds);
}
