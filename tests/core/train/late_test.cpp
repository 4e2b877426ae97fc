// Steps on a device that runs behind the host, whose streams run as early or as late as their waits allow.
// Any choice gives the same bits.

#include <catch2/catch.hpp>

#include "core/train/rank_schedule.h"
#include "core/train/snapshot_copy.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/train_support.h"
#include "tests/kernels/late_backend.h"

using namespace trainerd;
using test::LateBackend;

namespace {

constexpr std::int64_t kLateSteps = 4;

struct LateRun {
  std::vector<double> losses;
  std::vector<std::byte> state, snapshot;
};

std::vector<LateRun> run_late(const core::job::JobSpec& job, LateBackend::Early early,
                              std::int64_t devices_per_node) {
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = devices_per_node;
  topology.nodes = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  parallel::LocalWorld world(layout.grid.ranks());
  std::vector<LateRun> runs(static_cast<std::size_t>(layout.grid.ranks()));
  world.run([&](std::int64_t rank) {
    base::ThreadPool pool(1);
    kernels::CpuBackend cpu(topology.device, pool);
    LateBackend late(cpu, early);
    test::FunctionWorld others([&](kernels::Backend&, const std::string& name,
                                   const std::vector<std::int64_t>& members) {
      return parallel::make_staged(world.communicator(rank, cpu, members, name), late, {.slot_bytes = 4096});
    });
    // Room for what another kind of target takes.
    kernels::MemoryBudget budget = core::rank::dry_run(job, layout, rank, topology.device).memory;
    for (auto& region : budget.regions) region.bytes *= 4;
    const std::int64_t stage = layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
    core::train::StepMemory memory(late, core::train::count_slots(job, layout, stage), budget);
    const core::train::RankGroups groups(layout, rank, job.model, others, late);
    core::train::Trainer trainer(job, layout, late, groups, memory);
    trainer.initialise();
    LateRun& mine = runs[static_cast<std::size_t>(rank)];
    // As in a run: the next step is launched before the report of the last one is read, and a snapshot is
    // copied beside the step.
    const core::train::Snapshot snapshot(trainer.params());
    core::train::SnapshotCopy copy(late, snapshot, memory.scratch());
    mine.snapshot.resize(static_cast<std::size_t>(snapshot.bytes()));
    for (std::int64_t step = 1; step <= kLateSteps; ++step) {
      const std::vector<std::int32_t> samples = test::skewed_samples(job, step);
      if (step == 3) copy.begin(trainer.stream(), mine.snapshot);
      trainer.launch(step, *test::batches(trainer, samples), {}, [&] { copy.finish(); });
      if (step > 1) mine.losses.push_back(trainer.report().loss);
    }
    mine.losses.push_back(trainer.report().loss);
    late.run_all();
    mine.state = test::state_of(trainer);
  });
  return runs;
}

}  // namespace

TEST_CASE("streams that run early or late give the same bits", "[late]") {
  struct Layout {
    const char* name;
    std::function<void(core::job::JobSpec&)> change;
    std::int64_t devices_per_node = 64;
  };
  const auto all = [](core::job::JobSpec& job) {
    job.parallel.zero = 3, job.parallel.offload_params = job.parallel.offload_grads = true;
    job.optimizer.offload = true;
  };
  const auto experts = [](core::job::JobSpec& job) {
    job.model.experts.count = 4, job.model.experts.per_token = 2;
    job.parallel.dp = job.parallel.ep = 2;
  };
  const auto whole_experts = [&](core::job::JobSpec& job) {
    experts(job);
    job.parallel.tp = 2, job.parallel.ep = 4, job.parallel.etp = 1, job.parallel.sequence_parallel = true;
  };
  const auto inputs = [](core::job::JobSpec& job) {
    job.model.layers = 5;
    job.recompute.kind = core::job::RecomputeKind::full, job.parallel.offload_activations = true;
  };
  const Layout layout = GENERATE_COPY(values<Layout>({
      {"one rank", [](auto&) {}},
      {"one rank, offloaded", all},
      {"dp 2", [](auto& job) { job.parallel.dp = 2; }},
      {"zero 3", [](auto& job) { job.parallel.dp = 2, job.parallel.zero = 3; }},
      {"dp 2, offloaded", [&](auto& job) { all(job), job.parallel.dp = 2; }},
      {"dp 2, offloaded, not overlapped",
       [&](auto& job) {
         all(job), job.parallel.dp = 2;
         job.parallel.overlap_grad_reduce = job.parallel.overlap_param_gather = false;
       }},
      {"two levels", [](auto& job) { job.parallel.dp = 4; }, 2},
      {"two levels, zero 3", [](auto& job) { job.parallel.dp = 4, job.parallel.zero = 3; }, 2},
      {"two levels, offloaded", [&](auto& job) { all(job), job.parallel.dp = 4; }, 2},
      {"messages in bf16, offloaded",
       [&](auto& job) { all(job), job.parallel.dp = 2, job.precision.reduce = kernels::DType::bf16; }},
      {"tp 2 with sequence parallelism, pp 2, offloaded",
       [&](auto& job) {
         all(job), job.parallel.tp = job.parallel.pp = 2, job.parallel.sequence_parallel = true;
         job.model.tie_embeddings = true;
       }},
      {"pp 3 of one layer each, offloaded",
       [&](auto& job) { all(job), job.parallel.pp = 3, job.model.layers = 3; }},
      {"tp 2 in chunks, zb-v",
       [](auto& job) {
         job.parallel.tp = job.parallel.pp = 2, job.parallel.virtual_stages = 2;
         job.parallel.tp_overlap_chunks = 2, job.parallel.sequence_parallel = true;
         job.parallel.schedule = parallel::ScheduleKind::zb_v, job.model.layers = 4;
       }},
      {"cp 2", [](auto& job) { job.parallel.cp = 2; }},
      {"muon",
       [](auto& job) {
         job.parallel.dp = 2, job.optimizer.kind = core::job::OptimizerKind::muon;
         job.optimizer.lr = 0.02;
       }},
      {"muon, one rank, offloaded",
       [&](auto& job) {
         all(job), job.optimizer.kind = core::job::OptimizerKind::muon;
         job.optimizer.lr = 0.02;
       }},
      {"whole experts", whole_experts},
      {"inputs of layers offloaded", inputs},
      {"inputs of layers offloaded, all else too, dp 2, pp 2",
       [&](auto& job) { all(job), inputs(job), job.parallel.dp = job.parallel.pp = 2; }},
      {"inputs of layers offloaded, zb-v",
       [&](auto& job) {
         inputs(job), job.parallel.pp = 2, job.parallel.virtual_stages = 2;
         job.parallel.schedule = parallel::ScheduleKind::zb_v, job.model.layers = 6;
       }},
      {"inputs of layers offloaded, dualpipe-v with experts",
       [&](auto& job) {
         inputs(job), experts(job), job.parallel.pp = 2, job.parallel.virtual_stages = 2;
         job.model.layers = 8, job.parallel.schedule = parallel::ScheduleKind::dualpipe_v;
       }},
      {"experts", experts},
      {"experts, offloaded", [&](auto& job) { all(job), experts(job); }},
      {"experts, all to all",
       [&](auto& job) {
         experts(job), job.parallel.ep_comm = parallel::ExpertComm::all_to_all;
         job.parallel.ep_capacity = 2;
       }},
      {"experts, dualpipe-v",
       [&](auto& job) {
         experts(job), job.parallel.pp = 2, job.parallel.virtual_stages = 2, job.model.layers = 4;
         job.parallel.schedule = parallel::ScheduleKind::dualpipe_v;
       }},
  }));
  core::job::JobSpec job = test::small_job("bf16");
  layout.change(job);
  job.batch.global = 8;
  job.parallel.bucket_bytes = 4096;
  CAPTURE(layout.name);
  const std::vector<LateRun> immediate = run_late(job, LateBackend::Early::all, layout.devices_per_node);
  for (const LateBackend::Early early : {LateBackend::Early::compute, LateBackend::Early::others}) {
    CAPTURE(early == LateBackend::Early::compute);
    const std::vector<LateRun> run = run_late(job, early, layout.devices_per_node);
    for (std::size_t rank = 0; rank < run.size(); ++rank) {
      CAPTURE(rank);
      CHECK(run[rank].losses == immediate[rank].losses);
      CHECK((run[rank].state == immediate[rank].state));
      CHECK((run[rank].snapshot == immediate[rank].snapshot));
    }
  }
}
