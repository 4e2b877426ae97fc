// The planned memory equals the memory of a run: the meta world's plan against the CPU world's use.

#include <catch2/catch.hpp>

#include "core/train/rank_schedule.h"
#include "core/train/snapshot.h"
#include "kernels/meta/meta_backend.h"
#include "tests/core/train_support.h"

using namespace trainerd;

TEST_CASE("every region's high-water mark after real steps is the planned size", "[memory]") {
  core::job::JobSpec job = test::small_job(GENERATE("fp32", "bf16"));
  job.evaluate = {.every = 1, .batches = 1};
  job.batch.micro = GENERATE(1, 4);
  if (GENERATE(false, true)) {
    job.model.qk_norm = job.model.qkv_bias = job.model.tie_embeddings = true;
    job.model.mlp = core::job::Mlp::gelu;
    job.model.norm = core::job::Norm::layer;
    job.model.positions = core::job::Positions::learned;
  }
  core::rank::DeviceRank rank(job, test::cpu_topology(GENERATE(1, 3)));
  rank.trainer().initialise();
  test::losses(rank.trainer(), job, 1, 2);
  const auto samples = test::skewed_samples(job, 1);
  rank.trainer().evaluate(*test::batches(rank.trainer(), samples));
  const kernels::MemoryBudget measured = rank.memory().budget();
  for (const auto& region : rank.plan().memory.regions) {
    CAPTURE(region.name);
    CHECK(measured.bytes_of(region.name) == region.bytes);
    CHECK(region.bytes > 0);
  }
}

TEST_CASE("offloaded master weights and states are in host memory, and no bit changes", "[memory][offload]") {
  core::job::JobSpec job = test::small_job("bf16");
  job.parallel.dp = 2;
  job.parallel.zero = GENERATE(0, 1, 3);
  const bool muon = GENERATE(false, true);
  CAPTURE(job.parallel.zero, muon);
  if (muon) job.optimizer.kind = core::job::OptimizerKind::muon, job.optimizer.lr = 0.02;
  job.optimizer.average = {.decay = 0.9, .every = 2};
  struct Run {
    std::vector<double> losses;
    std::vector<std::byte> master;
    kernels::MemoryBudget memory;
  };
  const auto run = [&](bool offload) {
    job.optimizer.offload = offload;
    std::vector<Run> runs(2);
    test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      Run& mine = runs[static_cast<std::size_t>(rank)];
      mine.losses = test::losses(cpu.trainer(), job, 1, 4);
      test::require_as_planned(cpu);
      core::model::ParamStore& params = cpu.trainer().params();
      for (std::size_t view = 0; view < params.views(); ++view)
        for (const core::model::StatePart& part : params.view(view).state_parts())
          mine.master.insert(mine.master.end(), part.master.data, part.master.data + part.master.bytes());
      mine.memory = cpu.plan().memory;
    });
    return runs;
  };
  const std::vector<Run> there = run(false), offloaded = run(true);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(offloaded[rank].losses == there[rank].losses);
    CHECK(offloaded[rank].master == there[rank].master);
    const auto terms_of = [](const kernels::MemoryBudget& memory, const std::string& region) {
      for (const auto& r : memory.regions)
        if (r.name == region) return r.terms;
      return std::map<std::string, std::int64_t>();
    };
    const auto before = terms_of(there[rank].memory, "persistent"),
               host = terms_of(offloaded[rank].memory, "host");
    CHECK(host == std::map<std::string, std::int64_t>{{"master_weights", before.at("master_weights")},
                                                      {"moments", before.at("moments")}});
    CHECK(terms_of(offloaded[rank].memory, "persistent").count("moments") == 0);
    CHECK(there[rank].memory.host_bytes() == 0);
    CHECK(there[rank].memory.total_bytes() ==
          offloaded[rank].memory.total_bytes() + offloaded[rank].memory.host_bytes());
  }
}

namespace {

/// Losses and master weights by rank, and the plan of each.
struct OffloadRun {
  std::vector<double> losses;
  std::vector<std::byte> master;
  std::map<std::string, std::int64_t> host;
  std::int64_t elements = 0;  ///< of the rank's parts
};

std::vector<OffloadRun> run_offloaded(const core::job::JobSpec& job, std::int64_t devices_per_node) {
  std::vector<OffloadRun> runs(static_cast<std::size_t>(job.parallel.ranks()));
  test::on_every_rank(
      job,
      [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
        OffloadRun& mine = runs[static_cast<std::size_t>(rank)];
        mine.losses = test::losses(cpu.trainer(), job, 1, 4);
        test::require_as_planned(cpu);
        core::model::ParamStore& params = cpu.trainer().params();
        for (std::size_t view = 0; view < params.views(); ++view)
          for (const core::model::StatePart& part : params.view(view).state_parts())
            for (const core::model::StateRun& run : params.view(view).state_runs())
              if (&params.view(view).state_parts()[run.part] == &part) {
                const kernels::Tensor x = part.master.rows(run.begin, run.count);
                mine.master.insert(mine.master.end(), x.data, x.data + x.bytes());
              }
        for (const auto& region : cpu.plan().memory.regions)
          if (region.name == "host") mine.host = region.terms;
        for (std::size_t view = 0; view < params.views(); ++view)
          mine.elements += params.view(view).buckets().shard_elements();
      },
      devices_per_node);
  return runs;
}

}  // namespace

TEST_CASE("offloaded parameters and gradients are in host memory, and no bit changes", "[memory][offload]") {
  // Of one rank, whose gradients accumulate in place where nothing is offloaded: sums of bf16 gradients in
  // memory round alike, sums of fp32 ones differ in a product's own order.
  struct Layout {
    const char* name;
    std::function<void(core::job::JobSpec&)> change;
    std::int64_t devices_per_node = 64;
  };
  const Layout layout = GENERATE(values<Layout>(
      {{"dp 2", [](auto& job) { job.parallel.dp = 2; }},
       {"one rank", [](auto&) {}},
       {"dp 2, fp32", [](auto& job) { job = test::small_job(), job.parallel.dp = 2; }},
       {"tied embedding, tp 2 with sequence parallelism",
        [](auto& job) {
          job.model.tie_embeddings = true;
          job.parallel.dp = job.parallel.tp = 2, job.parallel.sequence_parallel = true;
        }},
       {"pp 2, more chunks",
        [](auto& job) {
          job.parallel.dp = job.parallel.pp = 2, job.parallel.virtual_stages = 2;
          job.parallel.schedule = parallel::ScheduleKind::interleaved;
          job.model.layers = 4;
        }},
       {"muon, in the calling thread",
        [](auto& job) {
          job.parallel.dp = 2, job.parallel.overlap_grad_reduce = false;
          job.parallel.overlap_param_gather = false;
          job.optimizer.kind = core::job::OptimizerKind::muon, job.optimizer.lr = 0.02;
        }},
       {"muon, one rank",
        [](auto& job) { job.optimizer.kind = core::job::OptimizerKind::muon, job.optimizer.lr = 0.02; }},
       {"muon, experts on ranks of their own",
        [](auto& job) {
          job.optimizer.kind = core::job::OptimizerKind::muon, job.optimizer.lr = 0.02;
          job.model.experts.count = 4, job.model.experts.per_token = 2;
          job.parallel.dp = job.parallel.ep = 2;
        }},
       {"messages in bf16",
        [](auto& job) {
          job.parallel.dp = 2;
          job.precision.reduce = kernels::DType::bf16;
        }},
       {"two levels", [](auto& job) { job.parallel.dp = 4; }, 2},
       {"experts, ep 2",
        [](auto& job) {
          job.model.experts.count = 4, job.model.experts.per_token = 2;
          job.parallel.dp = job.parallel.ep = 2;
        }},
       {"whole experts, ep 4",
        [](auto& job) {
          job.model.experts.count = 4, job.model.experts.per_token = 2;
          job.parallel.tp = job.parallel.dp = 2, job.parallel.ep = 4, job.parallel.etp = 1;
          job.parallel.sequence_parallel = true;
        }},
       {"adapters", [](auto& job) {
          job.parallel.dp = 2;
          job.model.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "down_proj"}};
        }}}));
  core::job::JobSpec job = test::small_job("bf16");
  layout.change(job);
  job.batch.global = 8;
  job.parallel.zero = 3;
  job.parallel.bucket_bytes = 4096;  // several buckets in a unit
  const std::vector<OffloadRun> there = run_offloaded(job, layout.devices_per_node);
  for (const auto& [params, grads] : {std::pair{true, false}, {false, true}, {true, true}}) {
    CAPTURE(layout.name, params, grads);
    job.parallel.offload_params = params, job.parallel.offload_grads = grads;
    const std::vector<OffloadRun> offloaded = run_offloaded(job, layout.devices_per_node);
    for (std::size_t rank = 0; rank < there.size(); ++rank) {
      CHECK(offloaded[rank].losses == there[rank].losses);
      CHECK(offloaded[rank].master == there[rank].master);
      CHECK(there[rank].host.empty());
      if (job.model.lora.on()) continue;  // weights without gradients
      const bool same = job.precision.params == job.precision.master;
      std::map<std::string, std::int64_t> host;
      if (params)
        host[same ? "master_weights" : "parameters"] =
            there[rank].elements * kernels::size_of(job.precision.params);
      if (grads) host["gradients"] = there[rank].elements * kernels::size_of(job.precision.grads);
      CHECK(offloaded[rank].host == host);
    }
  }
}

TEST_CASE("offloaded inputs of layers are in host memory, and no bit changes", "[memory][offload]") {
  core::job::JobSpec job = test::small_job(GENERATE("fp32", "bf16"));
  job.model.layers = 6;
  job.recompute = {.kind = core::job::RecomputeKind::full, .every = GENERATE(1, 2)};
  job.evaluate = {.every = 1, .batches = 1};
  switch (GENERATE(0, 1, 2, 3)) {
    case 0: break;
    case 1: job.parallel.tp = 2, job.parallel.sequence_parallel = true; break;
    case 2: job.parallel.pp = 2, job.parallel.schedule = parallel::ScheduleKind::zb_h1; break;
    default:
      job.parallel.pp = 2, job.parallel.virtual_stages = 3, job.batch.global = 8;
      job.parallel.schedule = parallel::ScheduleKind::interleaved;
  }
  CAPTURE(job.recompute.every, job.parallel.tp, job.parallel.pp, job.parallel.virtual_stages);
  struct Run {
    std::vector<double> losses;
    std::vector<std::byte> state;
    std::int64_t host = 0, kept = 0;
  };
  const auto run = [&](bool offload) {
    job.parallel.offload_activations = offload;
    std::vector<Run> runs(static_cast<std::size_t>(job.parallel.ranks()));
    test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      Run& mine = runs[static_cast<std::size_t>(rank)];
      mine.losses = test::losses(cpu.trainer(), job, 1, 3);
      const auto samples = test::skewed_samples(job, 9);
      mine.losses.push_back(cpu.trainer().evaluate(*test::batches(cpu.trainer(), samples)).loss);
      test::require_as_planned(cpu);
      mine.state = test::state_of(cpu.trainer());
      for (const auto& region : cpu.plan().memory.regions) {
        if (region.kind == kernels::MemoryBudget::RegionKind::host) mine.host += region.bytes;
        if (region.name.starts_with("forward_to_backward")) mine.kept += region.bytes;
      }
    });
    return runs;
  };
  const std::vector<Run> there = run(false), offloaded = run(true);
  for (std::size_t rank = 0; rank < there.size(); ++rank) {
    CHECK(offloaded[rank].losses == there[rank].losses);
    CHECK(offloaded[rank].state == there[rank].state);
    CHECK(there[rank].host == 0);
    // The second rank of the last case has no layer that is recomputed.
    CHECK((offloaded[rank].host > 0 || (rank == 1 && job.recompute.every == 2)));
    CHECK(offloaded[rank].kept + offloaded[rank].host == there[rank].kept);
  }
}

TEST_CASE("a rank of 16 stages with 8 chunks reserves as many chunk activations as are live at once",
          "[memory]") {
  core::job::JobSpec job = test::small_job();
  job.model.layers = 128;
  job.parallel.pp = 16, job.parallel.virtual_stages = 8;
  job.parallel.schedule = parallel::ScheduleKind::interleaved;
  job.batch.micro = 1, job.batch.global = 64;
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = 16;
  parallel::Layout layout = core::rank::layout_of(job, topology);
  for (std::int64_t i = 0; i < 128; ++i)
    layout.chunks[static_cast<std::size_t>(i)] = {
        .first_layer = i, .layers = 1, .embedding = i == 0, .head = i == 127};
  const auto kept = static_cast<std::size_t>(core::train::SlotClass::forward_to_weight);
  for (const std::int64_t rank : {0, 1, 15}) {
    const core::train::SlotCounts counts = core::train::count_slots(job, layout, rank);
    REQUIRE(counts.of_pool.size() == 1);
    int alive = 0, most = 0;
    for (const parallel::Action& a :
         parallel::make_schedule(parallel::schedule_shape(job.parallel, 64), static_cast<int>(rank))) {
      if (a.kind == parallel::ActionKind::forward) most = std::max(most, ++alive);
      if (a.kind == parallel::ActionKind::backward) --alive;
    }
    CHECK(counts.of_pool.front()[kept] == most);
    if (rank == 0) CHECK(most == 16 * 8 + 15);  // Korthikanti et al., 2022, section 4.2.3
    // The plan reserves `most` frames of one chunk.
    const core::rank::DryRun plan = core::rank::dry_run(job, layout, rank, topology.device);
    CHECK(plan.memory.bytes_of("forward_to_weight") % most == 0);
  }
}

TEST_CASE("a size that no machine has is refused, also where its bytes do not fit in 63 bits", "[memory]") {
  using namespace kernels;
  constexpr std::int64_t k2to31 = std::int64_t{1} << 31;
  Arena dry = Arena::dry("dry");
  const auto message = [&](const Shape& shape) {
    try {
      dry.take(DType::f32, shape, MemoryTerm::activations);
    } catch (const base::CapacityError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(message({k2to31, k2to31}), Catch::Contains("does not fit"));  // 2^64 bytes: wraps to none
  CHECK_THAT(message({k2to31, k2to31, k2to31}), Catch::Contains("does not fit"));    // 2^95
  CHECK_THAT(message({k2to31, k2to31 / 2, 2, 1}), Catch::Contains("does not fit"));  // 2^64
  CHECK_THAT(message({std::int64_t{1} << 58}),
             Catch::Contains("does not fit"));  // 2^60: fits 63 bits, no machine
  CHECK(dry.top() == 0);
  CHECK(message({std::int64_t{1} << 49}).empty());                                      // 2^51
  CHECK_THAT(message({(std::int64_t{1} << 49) + 1}), Catch::Contains("does not fit"));  // on top of 2^51
}

TEST_CASE("a plan's FLOPs are the convention's plus those outside of matrix products", "[memory]") {
  core::job::JobSpec job = test::small_job();
  // Large enough that products dominate.
  job.model.hidden = 256;
  job.model.head_dim = 64;
  job.model.ffn = 512;
  job.model.vocab = 512;
  const parallel::Topology topology = test::cpu_topology(1);
  const core::rank::DryRun plan =
      core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device);
  const double convention =
      core::job::flops_per_token(job.model) * static_cast<double>(job.tokens_per_step());
  CHECK(plan.flops_per_step > convention);
  CHECK(plan.flops_per_step < 1.1 * convention);
}

TEST_CASE("a job that does not fit the node is refused with its largest term and a remedy", "[memory]") {
  const core::job::JobSpec job = test::small_job();
  parallel::Topology topology = test::cpu_topology(1);
  const core::rank::DryRun plan =
      core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device);
  topology.node_memory_bytes = plan.memory.total_bytes() + 2 * plan.snapshot_bytes;
  CHECK_NOTHROW(core::rank::require_fits(std::span(&plan, 1), job, topology, 2));
  topology.node_memory_bytes -= 1;
  CHECK_THROWS_AS(core::rank::require_fits(std::span(&plan, 1), job, topology, 2), base::CapacityError);
  CHECK_THROWS_WITH(core::rank::require_fits(std::span(&plan, 1), job, topology, 2),
                    Catch::Contains("rank 0") && Catch::Contains("try"));
}

TEST_CASE("the host's plan counts the snapshots that a job keeps in memory", "[memory]") {
  core::job::JobSpec job = test::small_job();
  CHECK((core::rank::snapshot_segments(job) == 2 && core::rank::host_snapshots(job) == 2));
  job.checkpoint.memory.steps = 10;
  CHECK((core::rank::snapshot_segments(job) == 3 && core::rank::host_snapshots(job) == 3));
  job.checkpoint.partner = true;
  CHECK((core::rank::snapshot_segments(job) == 5 && core::rank::host_snapshots(job) == 7));
  job.checkpoint.memory = {};
  CHECK((core::rank::snapshot_segments(job) == 4 && core::rank::host_snapshots(job) == 6));
}
