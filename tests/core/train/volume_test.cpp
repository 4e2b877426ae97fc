// Communication volume of data parallelism: the formulas of the ZeRO paper (Rajbhandari et al. 2020, section
// 7), with microbatches.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>

#include "core/rank/dry_run.h"
#include "core/train/trainer.h"
#include "kernels/meta/meta_backend.h"
#include "parallel/comm/meta/meta_communicator.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

/// Bytes of one step by group and operation, from rank 0's calls; sizes are of whole tensors.
std::map<std::string, std::int64_t> volume_of(const core::job::JobSpec& job,
                                              std::int64_t devices_per_node = 64) {
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = devices_per_node;
  topology.nodes = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  std::map<std::string, std::int64_t> volume;
  bool counting = false;
  kernels::MetaBackend backend(topology.device, {});
  parallel::MetaWorld world(0, [&](parallel::Group group, const parallel::MetaCollective& c) {
    if (counting && c.moment == parallel::CommMoment::issue)
      volume[std::string(info(group).name) + "." + to_string(c.kind)] += c.bytes;
  });
  const core::train::RankGroups groups(layout, 0, job.model, world, backend);
  core::train::StepMemory memory(core::train::count_slots(job, layout, 0), topology.device.alignment);
  core::train::Trainer trainer(job, layout, backend, groups, memory);
  trainer.initialise();
  core::train::SampleBatches batches(trainer.batch_shape(), nullptr);  // the meta world reads no samples
  for (std::int64_t step = 1; step <= 2; ++step) {
    counting = step == 2;  // step 1 learns the order of use; its volume is the same
    trainer.step(step, batches, {});
  }
  return volume;
}

/// All units divide evenly into their parts: no padding. Weights in fp32, 4 bytes each.
core::job::JobSpec job_of(std::int64_t zero, std::int64_t microbatches) {
  core::job::JobSpec job = test::small_job();
  job.model.hidden = 256;
  job.model.heads = job.model.kv_heads = 4;
  job.model.head_dim = 64;
  job.model.ffn = 256;
  job.model.vocab = 256;
  job.model.layers = 4;
  job.parallel.dp = 2;
  job.parallel.zero = zero;
  job.batch.micro = 1;
  job.batch.global = 2 * microbatches;
  return job;
}

constexpr std::int64_t kNorms = (2 * 4 + 1) * 256 * 4;
constexpr std::int64_t kLayers = 4 * (4 * 256 * 256 + 3 * 256 * 256) * 4 + kNorms;
constexpr std::int64_t kTable = 256 * 256 * 4;
constexpr std::int64_t kAll = kLayers + 2 * kTable;

}  // namespace

TEST_CASE("data parallelism moves 2P, (m+1)P and 3mP bytes of parameters and gradients", "[volume]") {
  for (const std::int64_t m : {1, 2, 5}) {
    CAPTURE(m);
    for (const std::int64_t zero : {0, 1}) {
      auto volume = volume_of(job_of(zero, m));
      CHECK(volume["dp.reduce_scatter"] == kAll);
      CHECK(volume["dp.all_gather"] == kAll);
    }
    auto zero2 = volume_of(job_of(2, m));
    CHECK(zero2["dp.reduce_scatter"] == m * kAll);
    CHECK(zero2["dp.all_gather"] == kAll);
    // The embedding's table is gathered in the forward pass only; the head's in the backward pass only, where
    // the loss is computed.
    auto zero3 = volume_of(job_of(3, m));
    CHECK(zero3["dp.reduce_scatter"] == m * kAll);
    CHECK(zero3["dp.all_gather"] == m * (2 * kLayers + 2 * kTable));
  }
}

TEST_CASE(
    "recomputation gathers no more parameters: a layer's are gathered once for it and the backward pass",
    "[volume][recompute]") {
  for (const core::job::RecomputeOptions recompute :
       {core::job::RecomputeOptions{core::job::RecomputeKind::selective},
        core::job::RecomputeOptions{core::job::RecomputeKind::full},
        core::job::RecomputeOptions{core::job::RecomputeKind::full, 2}}) {
    core::job::JobSpec job = job_of(3, 2);
    job.recompute = recompute;
    auto volume = volume_of(job);
    CHECK(volume["dp.reduce_scatter"] == 2 * kAll);
    CHECK(volume["dp.all_gather"] == 2 * (2 * kLayers + 2 * kTable));
  }
}

TEST_CASE("context parallelism gathers keys and values twice per layer and sums their gradients once",
          "[volume][context]") {
  for (const std::int64_t m : {1, 3}) {
    core::job::JobSpec job = job_of(0, m);
    job.parallel.dp = 1, job.parallel.cp = 2;
    job.batch.global = m;
    // Of whole sequences: 24 tokens with keys and values of 4 heads of 64.
    constexpr std::int64_t kKeysAndValues = 24 * 2 * 4 * 64 * 4;
    job.parallel.cp_comm = parallel::ContextComm::all_gather;
    auto volume = volume_of(job);
    CHECK(volume["cp.all_to_all"] == 0);
    CHECK(volume["cp.all_gather"] == m * 4 * 2 * kKeysAndValues);
    CHECK(volume["cp.reduce_scatter"] == m * 4 * kKeysAndValues);
    CHECK(volume["dp.reduce_scatter"] == kAll);
    CHECK(volume["dp.all_gather"] == kAll);
  }
}

TEST_CASE("context parallelism by heads exchanges projections and outputs three times per layer",
          "[volume][context]") {
  core::job::JobSpec job = job_of(0, 3);
  job.parallel.dp = 1, job.parallel.cp = 2;
  job.batch.global = 3;
  // All tokens of half of the heads; of 4 heads of queries, keys and values each.
  constexpr std::int64_t kOutputs = 24 * 4 * 64 * 4 / 2;
  auto volume = volume_of(job);
  CHECK(volume["cp.all_to_all"] == 3 * 4 * 3 * (3 * kOutputs + kOutputs));
  CHECK(volume["cp.all_gather"] == 0);
  CHECK(volume["cp.reduce_scatter"] == 0);
}

TEST_CASE("expert parallelism gathers tokens three times and sums results twice per layer",
          "[volume][experts]") {
  for (const std::int64_t zero : {1, 3}) {
    CAPTURE(zero);
    core::job::JobSpec job = job_of(zero, 2);
    job.model.experts = {.count = 4, .per_token = 2};
    job.parallel.dp = 4, job.parallel.ep = 2;
    job.batch.global = 4 * 2;
    // Of both ranks: 24 tokens each of 256 elements, and a weight and a choice, or the weight's gradient, for
    // each of two experts.
    constexpr std::int64_t kTokens = 2 * 24 * 256 * 4, kChoices = 2 * 24 * 2 * 4;
    constexpr std::int64_t kExperts = 4 * 2 * 3 * 256 * 256 * 4,  // of one rank, two per layer
        kDense = 4 * (4 * 256 * 256 + 4 * 256) * 4 + kNorms + 2 * kTable;
    auto volume = volume_of(job);
    CHECK(volume["ep.all_gather"] == 2 * 4 * (3 * kTokens + 2 * kChoices));
    CHECK(volume["ep.reduce_scatter"] == 2 * 4 * (2 * kTokens + kChoices));
    CHECK(volume["edp.reduce_scatter"] == (zero == 3 ? 2 : 1) * kExperts);
    CHECK(volume["edp.all_gather"] == (zero == 3 ? 4 : 1) * kExperts);
    CHECK(volume["dp.reduce_scatter"] == (zero == 3 ? 2 : 1) * kDense);
    CHECK(volume["tp.all_reduce"] == 0);
  }
}

TEST_CASE("whole experts get each token from one tensor-parallel rank", "[volume][experts]") {
  core::job::JobSpec job = job_of(1, 2);
  job.model.experts = {.count = 4, .per_token = 2};
  job.parallel.tp = job.parallel.dp = 2, job.parallel.ep = 4, job.parallel.sequence_parallel = true;
  job.batch.global = 2 * 2;
  const auto cut = [&] {
    core::job::JobSpec other = job;
    other.parallel.ep = 2;
    return volume_of(other);
  }();
  job.parallel.etp = 1;
  const auto whole = volume_of(job);
  // All tokens of the four ranks, 12 each, instead of those of two ranks, 24 each: as many bytes, of which a
  // rank sends a quarter and not a half. Layers gather and sum them for attention, and for experts no more.
  CHECK(whole.at("ep.all_gather") == cut.at("ep.all_gather"));
  CHECK(whole.at("ep.reduce_scatter") == cut.at("ep.reduce_scatter"));
  CHECK(whole.at("tp.all_gather") < cut.at("tp.all_gather"));
  CHECK(whole.at("tp.reduce_scatter") < cut.at("tp.reduce_scatter"));
  // One rank has each expert, so nothing is summed.
  CHECK(whole.count("edp.reduce_scatter") == 0);
  CHECK(cut.count("edp.reduce_scatter") == 0);
}

TEST_CASE("with two levels one part of each sum crosses between nodes", "[volume]") {
  core::job::JobSpec job = job_of(1, 2);
  job.parallel.dp = 4;
  job.batch.global = 8;
  auto volume = volume_of(job, 2);
  CHECK(volume["dp_inner.reduce_scatter"] == kAll);
  CHECK(volume["dp_outer.reduce_scatter"] == kAll / 2);
  CHECK(volume["dp_outer.all_gather"] == kAll / 2);
  CHECK(volume["dp_inner.all_gather"] == kAll);
  CHECK(volume.count("dp.reduce_scatter") == 0);
}

TEST_CASE(
    "a layer with sequence parallelism gathers 2 flows in forward and 4 in backward, 6 if backward is split",
    "[volume]") {
  const auto of_a_layer = [](std::int64_t pp, parallel::ScheduleKind schedule) {
    std::array<std::map<std::string, std::int64_t>, 2> volume;
    core::job::JobSpec job = job_of(0, 4);
    job.parallel.dp = 1, job.parallel.tp = 2, job.parallel.pp = pp;
    job.parallel.sequence_parallel = true;
    job.parallel.schedule = schedule;
    for (const std::size_t deep : {0, 1}) {
      job.model.layers = deep == 1 ? 8 : 4;
      volume[deep] = volume_of(job);
    }
    // Rank 0 is in the first stage; the deeper model gives it 4 / pp layers more.
    const std::int64_t flow = job.model.seq_len * job.model.hidden * 4, layers = 4 / pp * job.microbatches();
    return std::pair((volume[1]["tp.all_gather"] - volume[0]["tp.all_gather"]) / flow / layers,
                     (volume[1]["tp.reduce_scatter"] - volume[0]["tp.reduce_scatter"]) / flow / layers);
  };
  CHECK(of_a_layer(1, parallel::ScheduleKind::one_f_one_b) == std::pair<std::int64_t, std::int64_t>(6, 4));
  CHECK(of_a_layer(2, parallel::ScheduleKind::one_f_one_b) == std::pair<std::int64_t, std::int64_t>(6, 4));
  CHECK(of_a_layer(2, parallel::ScheduleKind::zb_h1) == std::pair<std::int64_t, std::int64_t>(8, 4));
}

TEST_CASE("hybrid sharding gathers inside its group and sums among replicas once per step", "[volume]") {
  core::job::JobSpec job = job_of(3, 3);
  job.parallel.dp = 4;
  job.parallel.zero_group = 2;
  job.batch.global = 12;
  auto volume = volume_of(job);
  CHECK(volume["dp_inner.reduce_scatter"] == 3 * kAll);
  CHECK(volume["dp_inner.all_gather"] == 3 * (2 * kLayers + 2 * kTable));
  CHECK(volume["dp_outer.all_reduce"] == kAll / 2);
  CHECK(volume.count("dp_outer.all_gather") == 0);
}

TEST_CASE("gradients rounded for transfer halve the bytes of each reduction", "[volume]") {
  const auto rounded = [](core::job::JobSpec job) {
    job.precision.name = "custom";
    job.precision.reduce = kernels::DType::bf16;
    return job;
  };
  for (const std::int64_t m : {1, 3}) {
    CAPTURE(m);
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      auto volume = volume_of(rounded(job_of(zero, m)));
      CHECK(volume["dp.all_to_all"] == (zero >= 2 ? m : 1) * kAll / 2);
      CHECK(volume.count("dp.reduce_scatter") == 0);
      // Sums and parameters, in fp32.
      CHECK(volume["dp.all_gather"] == (zero == 3 ? m * (2 * kLayers + 2 * kTable) : kAll));
    }
  }
  core::job::JobSpec levels = job_of(1, 2);
  levels.parallel.dp = 4;
  levels.batch.global = 8;
  auto volume = volume_of(rounded(levels), 2);
  CHECK(volume["dp_inner.all_to_all"] == kAll / 2);
  CHECK(volume["dp_outer.all_to_all"] == kAll / 2 / 2);
  CHECK(volume["dp_outer.all_gather"] == kAll / 2);
  CHECK(volume["dp_inner.all_gather"] == kAll);

  core::job::JobSpec hybrid = job_of(3, 3);
  hybrid.parallel.dp = 4;
  hybrid.parallel.zero_group = 2;
  hybrid.batch.global = 12;
  volume = volume_of(rounded(hybrid));
  CHECK(volume["dp_inner.all_to_all"] == 3 * kAll / 2);
  CHECK(volume["dp_outer.all_to_all"] == kAll / 2 / 2);
  CHECK(volume["dp_outer.all_gather"] == kAll / 2);
  CHECK(volume.count("dp_outer.all_reduce") == 0);
}

TEST_CASE("gradients held in bf16 need as many bytes by exchange as by reduce-scatter", "[volume]") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    core::job::JobSpec job = job_of(zero, 3);
    job.precision.name = "custom";
    job.precision.grads = kernels::DType::bf16;
    auto summed = volume_of(job);
    job.precision.reduce = kernels::DType::bf16;
    auto exchanged = volume_of(job);
    CHECK(summed["dp.reduce_scatter"] == (zero >= 2 ? 3 : 1) * kAll / 2);
    CHECK(exchanged["dp.all_to_all"] == summed["dp.reduce_scatter"]);
    CHECK(exchanged.count("dp.reduce_scatter") == 0);
    CHECK(exchanged["dp.all_gather"] == summed["dp.all_gather"]);
  }
}

TEST_CASE("rounding for transfer needs memory for one unit of gradients in flight, or for a bucket",
          "[volume]") {
  const auto gradients = [](std::int64_t zero, bool background, kernels::DType reduce) {
    core::job::JobSpec job = job_of(zero, 1);
    job.precision.name = "custom";
    job.precision.reduce = reduce;
    job.parallel.overlap_grad_reduce = background;
    job.parallel.bucket_bytes = 1 << 16;
    parallel::Topology topology = test::cpu_topology(1);
    topology.devices_per_node = 64;
    const core::rank::DryRun plan =
        core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device);
    for (const auto& region : plan.memory.regions)
      if (region.name == "persistent") return region.terms.at("gradients");
    return std::int64_t{0};
  };
  constexpr std::int64_t kLargestUnit = (kLayers - kNorms) / 4;  // sent and received: twice 2 bytes
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    const auto added = [&](bool background) {
      return gradients(zero, background, kernels::DType::bf16) -
             gradients(zero, background, kernels::DType::f32);
    };
    CHECK(added(true) == kLargestUnit);
    CHECK(added(false) > 0);
    CHECK(added(false) <= 1 << 16);
  }
}

TEST_CASE("a rank keeps its ZeRO stage's share of parameters, gradients and optimizer state", "[volume]") {
  // bf16 weights and gradients, fp32 master weights and moments: the 16 bytes per parameter of the ZeRO
  // paper's table 1.
  const auto kept = [](std::int64_t zero, std::int64_t dp) {
    core::job::JobSpec job = job_of(zero, 1);
    job.precision = {.name = "custom",
                     .compute = kernels::DType::bf16,
                     .params = kernels::DType::bf16,
                     .grads = kernels::DType::bf16};
    job.parallel.dp = dp;
    job.batch.global = dp;
    job.parallel.overlap_grad_reduce = job.parallel.overlap_param_gather = false;
    parallel::Topology topology = test::cpu_topology(1);
    topology.devices_per_node = 64;
    const core::rank::DryRun plan =
        core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device);
    std::map<std::string, std::int64_t> terms;
    for (const auto& region : plan.memory.regions)
      if (region.name == "persistent") terms = region.terms;
    return terms;
  };
  constexpr std::int64_t kParams = kAll / 4, kLayer = (kLayers - kNorms) / 16, kVectors = kNorms / 4;
  constexpr std::int64_t kRings = 2 * (kLayer + kVectors);  // one unit of matrices, and the vectors
  const auto names = kept(0, 1);
  const auto of = [](const std::map<std::string, std::int64_t>& terms, const char* name) {
    const auto it = terms.find(name);
    return it == terms.end() ? 0 : it->second;
  };
  const std::int64_t tables = 4 * 24 * 64;  // rotary angles: a parameter that is not trained
  for (const std::int64_t dp : {2, 4}) {
    CAPTURE(dp);
    const auto zero1 = kept(1, dp), zero2 = kept(2, dp), zero3 = kept(3, dp);
    for (const auto& zero : {zero1, zero2, zero3}) {
      CHECK(of(zero, "master_weights") == 4 * kParams / dp);
      CHECK(of(zero, "moments") == 8 * kParams / dp);
    }
    CHECK(of(zero1, "gradients") == 2 * kParams);
    CHECK(of(zero2, "gradients") == 2 * kParams / dp + kRings);
    CHECK(of(zero3, "gradients") == 2 * kParams / dp + kRings);
    CHECK(of(zero2, "parameters") == 2 * kParams + tables);
    CHECK(of(zero3, "parameters") == 2 * kParams / dp + kRings + tables);
  }
  CHECK(of(names, "parameters") == 2 * kParams + tables);
  CHECK(of(names, "gradients") == 2 * kParams);
}
