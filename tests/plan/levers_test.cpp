// The plans of the GPU benchmarks A and B, and the planned gain of each lever.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "core/plan/cost/cost_model.h"
#include "core/plan/predict/plan.h"
#include "core/rank/device_rank.h"
#include "core/rank/record.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/rank_schedule.h"

using namespace trainerd;

namespace {

struct Levers {
  bool adds_in_products = true;
  bool loss_at_once = true;
  kernels::Tuning tuning = {};
};

core::job::JobSpec benchmark_job(const std::string& benchmark) {
  return core::spec::load_job(std::string(TRAINERD_SOURCE_DIR) + "/tests/bench/gpu/" + benchmark + ".yaml",
                              {"cluster.preset=dgx-h200"});
}

/// One operator in a step: planned seconds, and its lower bound from FLOPs at the planned rate of products or
/// from bytes.
struct PlannedOperator {
  double seconds = 0, floor = 0;
};
std::map<std::string, PlannedOperator> planned_operators(const core::job::JobSpec& job,
                                                         const parallel::Topology& topology) {
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  const core::rank::RankRecord record =
      core::rank::record_rank(job, layout, 0, topology.device, core::train::count_slots(job, layout, 0));
  const double flops = topology.peak.bf16 * topology.rates.gemm.efficiency,
               bytes = topology.memory_bytes_per_second * topology.rates.memory_efficiency;
  std::map<std::string, PlannedOperator> operators;
  const auto add = [&](const core::rank::RecordedSegment& segment, std::int64_t times) {
    for (const core::rank::RecordedEvent& event : segment) {
      if (event.kind != core::rank::RecordedEvent::Kind::op) continue;
      const core::rank::RecordedOp& op = record.ops[static_cast<std::size_t>(event.index)];
      PlannedOperator& sum = operators[kernels::name_of(op.op)];
      sum.seconds += static_cast<double>(times) * core::plan::op_seconds(op, topology);
      sum.floor += static_cast<double>(times) *
                   std::max(op.what.kind == kernels::OpClass::Kind::memory ? 0 : op.cost.flops / flops,
                            op.cost.bytes / bytes);
    }
  };
  add(record.before, 1), add(record.after, 1);
  const auto counts = core::rank::action_counts(parallel::schedule_shape(job.parallel, job.microbatches()));
  for (const auto& [key, count] : counts[0]) add(record.actions.at(key), count);
  return operators;
}

/// Planned tokens/s.
double planned_rate(const std::string& benchmark, const Levers& levers) {
  const core::job::JobSpec job = benchmark_job(benchmark);
  parallel::Topology topology = core::spec::job_topology(job);
  topology.device.adds_in_products = levers.adds_in_products;
  // Blocks of sm_80 cannot hold a row of this vocabulary; nothing else in these steps depends on the version.
  if (!levers.loss_at_once) topology.device.sm_version = 80;
  topology.device.tuning = levers.tuning;
  const core::plan::Plan plan = core::plan::make_plan(job, topology);
  REQUIRE(plan.fits);
  return plan.tokens_per_second_per_device;
}

constexpr std::int64_t kSmallWorkspace = std::int64_t{32} << 20;

core::rank::RecordedOp wgrad_of(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {kernels::Operator::linear_wgrad,
          kernels::gemm_class(kernels::GemmRole::wgrad, kernels::DType::bf16, kernels::DType::bf16, m, n, k),
          {2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), 0}};
}

}  // namespace

TEST_CASE("the plan splits a product's reduction if the workspace holds the parts, and counts their sum",
          "[plan][levers]") {
  parallel::Topology h200 = core::spec::job_topology(core::spec::parse_job(
      "model: {preset: qwen2.5-1.5b}\nsteps: 1\ndata: {format: synthetic}\nprecision: bf16\n"
      "batch: {global: 1, micro: 1}\ncluster: {preset: dgx-h200}\n",
      "job.yaml", {}));
  const auto seconds = [&](const core::rank::RecordedOp& op, std::int64_t workspace) {
    h200.device.tuning.gemm_workspace_bytes = workspace;
    return core::plan::op_seconds(op, h200);
  };
  // A's up projection has 840 tiles of 256 x 128: 6.4 waves of 132. Split in two it has 12.7 waves.
  const core::rank::RecordedOp up = wgrad_of(17920, 1536, 32768);
  const std::int64_t parts = std::int64_t{2} * 17920 * 1536 * 4;
  CHECK(seconds(up, parts) < seconds(up, parts - 1));
  CHECK(seconds(up, parts - 1) == seconds(up, 1));
  const double tile = 2.0 * 256 * 128 * 132 / (989e12 * 0.7);
  CHECK(seconds(up, 1) == Approx(7 * tile * (32768 + 70)).epsilon(1e-6));
  const double added = (static_cast<double>(parts) + 17920.0 * 1536 * 2) / (4800e9 * 0.92);
  CHECK(seconds(up, parts) == Approx(13 * tile * (16384 + 70) + added).epsilon(1e-6));
  // A product with many tiles gains nothing from a split.
  const core::rank::RecordedOp wide = wgrad_of(37888, 3584, 16384);
  CHECK(seconds(wide, std::int64_t{4} << 30) == seconds(wide, 1));
}

TEST_CASE("each lever speeds up the planned step of the benchmarks", "[plan][levers]") {
  struct LeverRow {
    const char* name;
    Levers levers;
  };
  constexpr kernels::Tuning kSmall{.gemm_workspace_bytes = kSmallWorkspace},
      kFirstChunk{.gemm_workspace_bytes = kSmallWorkspace, .head_chunk_tokens = 3456};
  const LeverRow rows[] = {
      {"without any", {.adds_in_products = false, .loss_at_once = false, .tuning = kFirstChunk}},
      {"head in whole waves", {.adds_in_products = false, .loss_at_once = false, .tuning = kSmall}},
      {"the loss in one pass", {.adds_in_products = false, .tuning = kSmall}},
      {"sums by the products", {.tuning = kSmall}},
      {"a workspace of 256 MiB", {}}};
  for (const std::string benchmark : {"a", "b"}) {
    double before = 0;
    for (const LeverRow& row : rows) {
      const double rate = planned_rate(benchmark, row.levers);
      std::printf("planned %s, %-24s %8.0f tokens/s\n", benchmark.c_str(), row.name, rate);
      CAPTURE(benchmark, row.name);
      CHECK(rate >= before);
      before = rate;
    }
    // A head chunk of 8192 tokens needs more memory and gains at most 0.1%.
    const double large = planned_rate(benchmark, {.tuning = {.head_chunk_tokens = 8192}});
    std::printf("planned %s, %-24s %8.0f tokens/s\n", benchmark.c_str(), "8192 tokens of the head", large);
    CHECK(large <= 1.001 * before);
  }
}

TEST_CASE("the planned step is the sum of its operators, each above its floor", "[plan][levers]") {
  for (const std::string benchmark : {"a", "b"}) {
    const core::job::JobSpec job = benchmark_job(benchmark);
    parallel::Topology topology = core::spec::job_topology(job);
    double seconds = 0, floor = 0;
    for (const auto& [name, op] : planned_operators(job, topology)) {
      std::printf("planned %s, %-22s %8.1f ms, floor %8.1f ms\n", benchmark.c_str(), name.c_str(),
                  1e3 * op.seconds, 1e3 * op.floor);
      CAPTURE(benchmark, name);
      CHECK(op.seconds >= op.floor * (1 - 1e-9));
      seconds += op.seconds, floor += op.floor;
    }
    const core::plan::Plan plan = core::plan::make_plan(job, topology);
    std::printf("planned %s, all %.1f ms, floor %.1f ms\n", benchmark.c_str(), 1e3 * seconds, 1e3 * floor);
    // Launches overlap with the device's work.
    CHECK(plan.time.step_seconds == Approx(seconds).epsilon(0.01));
  }
}
