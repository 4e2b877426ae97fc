// Steps whose repeated calls run as graphs, on a backend with capture (tests/kernels/capturing_backend.h).

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rank/dry_run.h"
#include "core/run/worker/report_record.h"
#include "kernels/backend/graph_backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/train_support.h"
#include "tests/kernels/capturing_backend.h"

using namespace trainerd;

namespace {

/// A rank on `Device`, a backend with capture, with or without graphs.
template <class Device>
struct GraphRank {
  GraphRank(const core::job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
            parallel::World& world, bool with_graphs)
      : cpu(kernels::detect_cpu(1), pool), device(cpu), graphs(device, kernels::GraphChoice::always) {
    kernels::Backend& backend = with_graphs ? static_cast<kernels::Backend&>(graphs) : device;
    const core::rank::DryRun plan = core::rank::dry_run(job, layout, rank, cpu.target());
    memory = std::make_unique<core::train::StepMemory>(
        backend,
        core::train::count_slots(job, layout,
                                 layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)]),
        plan.memory);
    groups = std::make_unique<core::train::RankGroups>(layout, rank, job.model, world, backend);
    trainer = std::make_unique<core::train::Trainer>(job, layout, backend, *groups, *memory);
    trainer->initialise();
  }

  base::ThreadPool pool{1};
  kernels::CpuBackend cpu;
  Device device;
  kernels::GraphBackend graphs;
  std::unique_ptr<core::train::StepMemory> memory;
  std::unique_ptr<core::train::RankGroups> groups;
  std::unique_ptr<core::train::Trainer> trainer;
};

struct GraphResult {
  std::vector<double> losses, norms, rates;
  std::vector<std::byte> state;
  std::vector<std::string> operators;  ///< called in the steps
  std::vector<std::int64_t> launches;  ///< of graphs, by step
  kernels::GraphUse use;
  int captured = 0;
  std::int64_t used_bytes = 0;

  void require_same(const GraphResult& other) const {
    CHECK(losses == other.losses);
    CHECK(norms == other.norms);
    CHECK(rates == other.rates);
    CHECK(state == other.state);
    CHECK(operators == other.operators);
    CHECK(used_bytes == other.used_bytes);
  }
};

/// Eight steps with an evaluation after every second one.
std::vector<GraphResult> results_of(const core::job::JobSpec& job, bool with_graphs) {
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = topology.nodes = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  std::vector<GraphResult> results(test::ranks_of(job));
  parallel::LocalWorld world(layout.grid.ranks());
  world.run([&](std::int64_t number) {
    test::FunctionWorld others(
        [&](kernels::Backend& backend, const std::string& name, const std::vector<std::int64_t>& members) {
          return world.communicator(number, backend, members, name);
        });
    GraphRank<test::CapturingBackend> rank(job, layout, number, others, with_graphs);
    rank.device.ran.clear();
    GraphResult& result = results[static_cast<std::size_t>(number)];
    for (std::int64_t step = 1; step <= 8; ++step) {
      const std::int64_t launches = rank.graphs.graph_use().launches;
      const core::train::StepReport report = test::step_on(*rank.trainer, job, step);
      result.launches.push_back(rank.graphs.graph_use().launches - launches);
      result.losses.push_back(report.loss);
      result.norms.push_back(report.grad_norm);
      result.rates.push_back(report.learning_rate);
      if (step % 2 == 0) {
        const std::vector<std::int32_t> samples = test::skewed_samples(job, 100 + step);
        result.losses.push_back(rank.trainer->evaluate(*test::batches(*rank.trainer, samples)).loss);
      }
    }
    result.state = test::state_of(*rank.trainer);
    result.operators = rank.device.operators();
    result.use = rank.graphs.graph_use();
    result.captured = rank.device.captured;
    result.used_bytes = rank.memory->budget().total_bytes();
  });
  return results;
}

/// Results of all ranks with graphs, after checking that they equal those without, bit for bit.
std::vector<GraphResult> same_with_graphs(const core::job::JobSpec& job) {
  const std::vector<GraphResult> without = results_of(job, false), with = results_of(job, true);
  for (std::size_t rank = 0; rank < with.size(); ++rank) {
    CAPTURE(rank);
    with[rank].require_same(without[rank]);
    CHECK(without[rank].captured == 0);
    CHECK(with[rank].captured == with[rank].use.graphs);
    CHECK(with[rank].use.graphs > 0);
    // No list loses its graph. After an evaluation a step's lists may be other ones, some of which come for
    // the first time in the third step.
    const std::vector<std::int64_t>& launches = with[rank].launches;
    CAPTURE(launches);
    CHECK(launches[2] > 0);
    CHECK(launches[4] == launches[6]);
    CHECK(launches[3] > 0);
    CHECK(launches[3] == launches[5]);
    CHECK(launches[5] == launches[7]);
    CHECK(launches[3] >= launches[1]);
    CHECK_FALSE(with[rank].use.failed);
  }
  return with;
}

/// A device that does nothing, in no time: only the host's time is left.
class NoDevice final : public kernels::ObservedBackend {
 public:
  explicit NoDevice(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}),
        captures_(inner.make_stream("captures", nullptr)) {}
  std::int64_t prepared_bytes(const kernels::PrepareWeight&) const override { return 0; }
  void copy(kernels::Stream&, const kernels::Tensor&, const kernels::Tensor&) override { ++calls; }
  void fill_zero(kernels::Stream&, const kernels::Tensor&) override { ++calls; }
#define TRAINERD_OPERATOR(name, Args, cuda) \
  void name(kernels::Stream&, const kernels::Args&) override { ++calls; }
#include "kernels/ops/operators.def"
  std::unique_ptr<kernels::DeviceGraph> capture(const std::function<void(kernels::Stream&)>& issue) override {
    issue(*captures_);
    return std::make_unique<kernels::DeviceGraph>();
  }
  void replay(kernels::Stream&, const kernels::DeviceGraph&) override {}
  std::int64_t calls = 0;

 private:
  std::unique_ptr<kernels::Stream> captures_;
};

/// Calls per step with `layers` layers, and the minimum host seconds per step over 400 steps.
std::pair<std::int64_t, double> walk_of(std::int64_t layers, bool with_graphs) {
  core::job::JobSpec job = test::small_job("bf16");
  job.model.layers = layers, job.batch.micro = 4;
  parallel::SingleRankWorld world;
  GraphRank<NoDevice> rank(job, core::rank::layout_of(job, test::cpu_topology(1)), 0, world, with_graphs);
  const std::vector<std::int32_t> samples = test::skewed_samples(job, 1);
  std::pair<std::int64_t, double> walk{0, 1};
  for (std::int64_t step = 1; step <= 400; ++step) {
    const auto batches = test::batches(*rank.trainer, samples);
    rank.device.calls = 0;
    const double begin = base::monotonic_seconds();
    rank.trainer->launch(step, *batches, {});
    walk.second = std::min(walk.second, base::monotonic_seconds() - begin);
    rank.trainer->report();
    if (step == 1) walk.first = rank.device.calls;
  }
  return walk;
}

}  // namespace

// Hidden: it measures kComparedCallSeconds of core/plan/replay/graph_issue.h.
TEST_CASE("host time per call, executed and compared with a graph", "[.graphs-walk]") {
  for (const bool with_graphs : {false, true}) {
    const auto few = walk_of(4, with_graphs), many = walk_of(36, with_graphs);
    std::printf("%s: %.0f ns a call\n", with_graphs ? "compared with a graph" : "called",
                1e9 * (many.second - few.second) / static_cast<double>(many.first - few.first));
  }
}

TEST_CASE("a step with graphs calls the same operators and has the same bits", "[graphs]") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const GraphResult result = same_with_graphs(test::small_job(precision)).front();
    // The learning rate changes per step and is not part of a graph.
    CHECK(result.rates[0] != result.rates[1]);
    CHECK(result.rates[3] != result.rates[4]);
    // Forward and backward of two microbatches, an evaluation's two, the norm.
    CHECK(result.use.graphs >= 5);
    CHECK(result.use.without.empty());
  }
}

TEST_CASE("steps of other shapes with graphs have the same bits", "[graphs]") {
  core::job::JobSpec job = test::small_job();
  SECTION("many microbatches") { job.batch.micro = 1; }
  SECTION("recomputed layers") { job.recompute.kind = core::job::RecomputeKind::full; }
  SECTION("z-loss and label smoothing") { job.loss.z_loss = 1e-4, job.loss.label_smoothing = 0.1; }
  SECTION("Muon") { job.optimizer.kind = core::job::OptimizerKind::muon, job.optimizer.lr = 2e-2; }
  SECTION("several chunks of a rank") {
    job.model.layers = 4;
    job.parallel.schedule = parallel::ScheduleKind::interleaved;
    job.parallel.virtual_stages = 2;
    job.parallel.pp = 2;
    job.batch.micro = 1;
  }
  same_with_graphs(job);
}

TEST_CASE("ranks with communication run the calls between as graphs", "[graphs]") {
  core::job::JobSpec job = test::small_job();
  SECTION("tensor parallel") { job.parallel.tp = 2; }
  SECTION("sequence parallel") { job.parallel.tp = 2, job.parallel.sequence_parallel = true; }
  SECTION("pipeline") { job.parallel.pp = 2, job.batch.micro = 1; }
  SECTION("data parallel, sharded") {
    job.parallel.dp = 2, job.batch.micro = 1;
    job.parallel.zero = GENERATE(1, 2, 3);
  }
  SECTION("passes that take turns") {
    job.model.layers = 4;
    job.model.experts = {.count = 4, .per_token = 2, .ffn = job.model.ffn};
    job.parallel.schedule = parallel::ScheduleKind::dualpipe_v;
    job.parallel.virtual_stages = 2;
    job.parallel.pp = job.parallel.dp = job.parallel.ep = 2;
    job.batch.micro = 1, job.batch.global = 12;
  }
  SECTION("Muon, sharded") {
    job.parallel.dp = 2, job.batch.micro = 1;
    job.optimizer.kind = core::job::OptimizerKind::muon, job.optimizer.lr = 2e-2;
  }
  same_with_graphs(job);
}

TEST_CASE("with dropout, whose key changes per step, dependent operators run call by call", "[graphs]") {
  core::job::JobSpec job = test::small_job();
  job.model.dropout.residual = 0.1;
  const GraphResult with = results_of(job, true).front();
  with.require_same(results_of(job, false).front());
  // Graphs of the evaluations and the norm.
  CHECK(with.use.graphs > 0);
  const GraphResult plain = results_of(test::small_job(), true).front();
  CHECK(with.use.graphs < plain.use.graphs);
}

TEST_CASE("a run reports its use of graphs", "[graphs]") {
  using State = kernels::GraphUse::State;
  kernels::GraphUse use;
  CHECK_FALSE(core::run::graphs_notice(use, 0, 3));
  use.state = State::deciding;
  CHECK_FALSE(core::run::graphs_notice(use, 0, 3));
  use.state = State::not_worth, use.issue_seconds = 0.0125, use.device_seconds = 2;
  const auto slow = core::run::graphs_notice(use, 0, 3);
  REQUIRE(slow);
  CHECK(slow->kind == io::NoticeKind::graphs);
  CHECK(slow->step == 3);
  CHECK(
      slow->message ==
      "rank 0: no CUDA graphs: a step's calls take the host 12.5 ms to put on the device, and the step takes "
      "the device 2 s");
  CHECK_FALSE(core::run::graphs_notice(use, 1, 3));
  use.state = State::used, use.device_seconds = 0.02, use.lists = 5, use.graphs = 4, use.graph_calls = 321;
  use.without = {"backward: fewer than 4 calls (2 lists)"};
  CHECK_FALSE(core::run::graphs_notice(use, 0, 4));
  use.steps_since = 3;
  const auto used = core::run::graphs_notice(use, 0, 5);
  REQUIRE(used);
  CHECK_THAT(used->message, Catch::Contains("CUDA graphs: 4 of 321 calls, of 5 lists that repeat"));
  CHECK(used->details == std::vector<std::string>{"no graph: backward: fewer than 4 calls (2 lists)"});
  CHECK_FALSE(core::run::graphs_notice(use, 1, 5));
  use.failed = true;
  CHECK(core::run::graphs_notice(use, 1, 5)->kind == io::NoticeKind::warning);
}
