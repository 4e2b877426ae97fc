// GEMMs that add their result to the residual stream (Target::adds_in_products). Runs on the CPU, whose GEMMs
// take an addend too, and compares with sums made by the norms.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "core/rank/record.h"
#include "core/train/rank_schedule.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

struct ResidualRun {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> states;  // of each rank
};

ResidualRun residual_run(const core::job::JobSpec& job, bool adds_in_products) {
  parallel::Topology topology = test::cpu_topology(1);
  topology.nodes = topology.devices_per_node = 64;
  topology.device.adds_in_products = adds_in_products;
  ResidualRun run;
  run.states.resize(test::ranks_of(job));
  test::on_ranks_of(topology, job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    const std::vector<double> losses = test::losses(cpu.trainer(), job, 1, 4);
    test::require_as_planned(cpu);
    if (rank == 0) run.losses = losses;
    run.states[static_cast<std::size_t>(rank)] = test::state_of(cpu.trainer());
  });
  return run;
}

core::job::JobSpec with_recompute(core::job::RecomputeKind kind, std::int64_t every = 1) {
  core::job::JobSpec job = test::small_job();
  job.model.layers = 4;
  job.recompute = {.kind = kind, .every = every};
  return job;
}

/// Operators of a step on a CUDA device, counted by name and by whether they add.
std::map<std::pair<kernels::Operator, bool>, std::int64_t> calls_on_gpu(
    const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"device=cuda", "cluster.preset=dgx-h200"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const core::job::JobSpec job = core::spec::parse_job(
      "model: {layers: 3, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, vocab: 512, seq_len: 256}\n"
      "batch: {global: 8, micro: 8}\nsteps: 3\nprecision: bf16\ndata: {format: synthetic}\n",
      "job.yaml", overrides);
  const parallel::Topology topology = core::spec::job_topology(job);
  const core::rank::RankRecord record =
      core::rank::record_rank(job, core::rank::layout_of(job, topology), 0, topology.device,
                              core::train::count_slots(job, core::rank::layout_of(job, topology), 0));
  std::map<std::pair<kernels::Operator, bool>, std::int64_t> calls;
  for (const auto& [key, segment] : record.actions)
    for (const core::rank::RecordedEvent& event : segment) {
      if (event.kind != core::rank::RecordedEvent::Kind::op) continue;
      const core::rank::RecordedOp& op = record.ops[static_cast<std::size_t>(event.index)];
      // A norm that adds moves three flows and one more for its output; a plain one moves two.
      const double flow = 8 * 256 * 256 * 2.0;
      const bool adds =
          op.op == kernels::Operator::add_norm_forward ? op.cost.bytes > 3 * flow : op.what.adds;
      calls[{op.op, adds}] += 1;
    }
  return calls;
}

}  // namespace

TEST_CASE("GEMMs that add to the residual stream train like norms that do", "[residual]") {
  using core::job::RecomputeKind;
  std::vector<core::job::JobSpec> jobs{with_recompute(RecomputeKind::none)};
  jobs.push_back(jobs[0]);  // a chunk's last GEMM writes the tensor that is sent
  jobs.back().parallel.pp = 2, jobs.back().parallel.virtual_stages = 2;
  jobs.back().parallel.schedule = parallel::ScheduleKind::interleaved;
  jobs.push_back(jobs[0]);
  jobs.back().parallel.pp = 2, jobs.back().parallel.schedule = parallel::ScheduleKind::zb_h1;
  for (const core::job::JobSpec& job : jobs) {
    const ResidualRun in_norms = residual_run(job, false), in_products = residual_run(job, true);
    REQUIRE(in_norms.losses.size() == in_products.losses.size());
    for (std::size_t i = 0; i < in_norms.losses.size(); ++i)
      CHECK(in_products.losses[i] == Approx(in_norms.losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("recomputation keeps every bit of sums made in GEMMs", "[residual]") {
  using core::job::RecomputeKind;
  const ResidualRun none = residual_run(with_recompute(RecomputeKind::none), true);
  CHECK((residual_run(with_recompute(RecomputeKind::selective), true).states == none.states));
  CHECK((residual_run(with_recompute(RecomputeKind::full), true).states == none.states));
  CHECK((residual_run(with_recompute(RecomputeKind::full, 2), true).states == none.states));
}

TEST_CASE("if a norm, dropout or a sum over ranks comes between, the next norm adds", "[residual]") {
  using kernels::Operator;
  const auto here = calls_on_gpu();
  // The last GEMMs of attention and MLP in each layer. The first norm adds nothing in either case.
  CHECK(here.at({Operator::linear_fprop, true}) == 2 * 3);
  CHECK(here.count({Operator::add_norm_forward, true}) == 0);
  for (const std::vector<std::string>& between : {std::vector<std::string>{"dropout.residual=0.1"},
                                                  {"model.norm_placement=sandwich"},
                                                  {"parallel.tp=2"}}) {
    CAPTURE(between.front());
    const auto calls = calls_on_gpu(between);
    CHECK(calls.count({Operator::linear_fprop, true}) == 0);
    CHECK(calls.at({Operator::add_norm_forward, true}) >= 2 * 3);
  }
}
