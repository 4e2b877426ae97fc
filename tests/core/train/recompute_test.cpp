// Recomputed activations equal those that were not kept: the same parameters bit for bit, in less memory.

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

using core::job::RecomputeKind;
using core::job::RecomputeOptions;

const std::vector<core::job::RecomputeOptions> kRecomputing = {{core::job::RecomputeKind::selective, 1},
                                                               {core::job::RecomputeKind::full, 1},
                                                               {core::job::RecomputeKind::full, 2},
                                                               {core::job::RecomputeKind::full, 3}};

/// Five layers, so that pipelines split unevenly; two key/value heads.
core::job::JobSpec job_of(const std::string& model, const std::string& precision) {
  core::job::JobSpec job = test::small_job(precision);
  job.steps = test::runs_full() ? 20 : 4;
  job.model.layers = 5;
  job.model.seq_len = 16;
  job.batch = {.global = 8, .micro = 1};
  job.evaluate = {.every = 1, .batches = 1};
  if (model == "qwen") job.model.qkv_bias = job.model.qk_norm = job.model.tie_embeddings = true;
  if (model == "gpt2") {
    job.model.norm = core::job::Norm::layer;
    job.model.positions = core::job::Positions::learned;
    job.model.mlp = core::job::Mlp::gelu;
    job.model.linear_bias = job.model.qkv_bias = job.model.tie_embeddings = true;
    job.model.kv_heads = 4;
  }
  if (model == "biased llama") job.model.linear_bias = job.model.qkv_bias = true;
  return job;
}

/// All results of training on one rank, byte for byte.
struct Outcome {
  std::vector<std::byte> state;
  std::vector<double> curve;
  bool operator==(const Outcome&) const = default;
};

std::vector<Outcome> train(const core::job::JobSpec& job) {
  std::vector<Outcome> outcomes(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 1; step <= job.steps; ++step) {
      const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
      outcome.curve.insert(outcome.curve.end(), {report.loss, report.grad_norm});
    }
    const auto samples = test::skewed_samples(job, 1);
    outcome.curve.push_back(cpu.trainer().evaluate(*test::batches(cpu.trainer(), samples)).loss);
    test::require_as_planned(cpu);
    outcome.state = test::state_of(cpu.trainer());
  });
  return outcomes;
}

void check_same_bytes(core::job::JobSpec job) {
  job.recompute = {};
  const std::vector<Outcome> kept = train(job);
  CHECK(kept[0].curve.front() > kept[0].curve[kept[0].curve.size() - 3]);
  for (const core::job::RecomputeOptions& recompute : kRecomputing) {
    CAPTURE(static_cast<int>(recompute.kind), recompute.every);
    job.recompute = recompute;
    const std::vector<Outcome> made_again = train(job);
    for (std::size_t rank = 0; rank < kept.size(); ++rank) {
      CAPTURE(rank);
      CHECK(made_again[rank].curve == kept[rank].curve);
      const bool same_state = made_again[rank].state == kept[rank].state;  // states are too long to print
      CHECK(same_state);
    }
  }
}

core::rank::DryRun plan_of(const core::job::JobSpec& job) {
  const parallel::Topology topology = test::cpu_topology(1);
  return core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device);
}

/// Bytes that stay alive after the forward pass.
std::int64_t kept_bytes(const core::rank::DryRun& plan) {
  return plan.memory.bytes_of("forward_to_backward") + plan.memory.bytes_of("forward_to_weight");
}

/// The table of core/model/README.md: bytes per token that a layer keeps from forward to backward.
std::int64_t bytes_per_token(const core::job::ModelOptions& m, core::job::RecomputeKind kind,
                             std::int64_t element) {
  const std::int64_t qkv = (m.heads + 2 * m.kv_heads) * m.head_dim;
  const std::int64_t up = m.mlp == core::job::Mlp::swiglu ? 2 * m.ffn : m.ffn,
                     act = m.mlp == core::job::Mlp::swiglu ? 0 : m.ffn;
  const std::int64_t statistics = m.norm == core::job::Norm::rms ? 1 : 2;
  switch (kind) {
    case core::job::RecomputeKind::full: return element * m.hidden;
    case core::job::RecomputeKind::selective: return element * (2 * m.hidden + qkv + up);
    case core::job::RecomputeKind::none: break;
  }
  return element * (4 * m.hidden + (m.qk_norm ? 2 : 1) * qkv + m.heads * m.head_dim + up + act) +
         4 * (2 * statistics + m.heads);
}

}  // namespace

TEST_CASE("one rank trains to the same bytes with any recomputation", "[recompute]") {
  const std::string model = GENERATE("llama", "qwen", "gpt2", "biased llama"),
                    precision = GENERATE("fp32", "bf16");
  CAPTURE(model, precision);
  check_same_bytes(job_of(model, precision));
}

TEST_CASE("ranks of every layout train to the same bytes with any recomputation", "[recompute][layouts]") {
  using parallel::ScheduleKind;
  const std::vector<parallel::ParallelOptions> layouts = [] {
    std::vector<parallel::ParallelOptions> all(9);
    all[0].tp = 2;
    all[1].tp = 2, all[1].dp = 2, all[1].sequence_parallel = true;
    all[2].pp = 2, all[2].schedule = ScheduleKind::zb_h1;
    all[3].pp = 2, all[3].schedule = ScheduleKind::interleaved, all[3].virtual_stages = 3;
    all[4].pp = 4;
    all[5].tp = 2, all[5].pp = 2, all[5].sequence_parallel = true, all[5].schedule = ScheduleKind::zb_h1;
    all[6].tp = 2, all[6].pp = 2, all[6].dp = 2, all[6].zero = 0, all[6].schedule = ScheduleKind::gpipe;
    all[7].dp = 2, all[7].zero = 3;
    all[8].tp = 2, all[8].pp = 2, all[8].dp = 2, all[8].zero = 3, all[8].schedule = ScheduleKind::zb_h1;
    return all;
  }();
  // Each layout runs with half of the models and formats, and each of those with half of the layouts.
  // `tests/run.sh full` runs all.
  std::size_t turn = 0;
  for (const std::string model : {"llama", "qwen", "gpt2"}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      for (const parallel::ParallelOptions& layout : layouts) {
        if (turn++ % 2 != 0 && !test::runs_full()) continue;
        if (!test::in_slice(turn / 2, 6)) continue;
        CAPTURE(model, precision, layout.tp, layout.pp, layout.dp, layout.zero, layout.sequence_parallel,
                parallel::to_string(layout.schedule), layout.virtual_stages);
        core::job::JobSpec job = job_of(model, precision);
        job.parallel = layout;
        check_same_bytes(job);
      }
    }
  }
}

TEST_CASE("a layer keeps the bytes per token that core/model/README.md says", "[recompute][memory]") {
  for (const std::string model : {"llama", "qwen", "gpt2"}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      std::map<core::job::RecomputeKind, std::int64_t> kept;
      for (const core::job::RecomputeKind kind :
           {core::job::RecomputeKind::none, core::job::RecomputeKind::selective,
            core::job::RecomputeKind::full}) {
        CAPTURE(model, precision, static_cast<int>(kind));
        core::job::JobSpec job = job_of(model, precision);
        job.recompute.kind = kind;
        job.model.seq_len = 64;
        const std::int64_t tokens = job.batch.micro * job.model.seq_len,
                           element = precision == "fp32" ? 4 : 2;
        job.model.layers = 12;
        kept[kind] = kept_bytes(plan_of(job));
        job.model.layers = 8;
        CHECK(kept[kind] - kept_bytes(plan_of(job)) ==
              4 * tokens * bytes_per_token(job.model, kind, element));
      }
      CHECK(kept[RecomputeKind::full] < kept[RecomputeKind::selective]);
      CHECK(kept[RecomputeKind::selective] < kept[RecomputeKind::none]);
    }
  }
}

TEST_CASE("a layer of Llama 3 8B keeps the bytes per token that core/model/README.md says",
          "[recompute][memory]") {
  core::job::JobSpec job = core::spec::parse_job(
      "model: {preset: llama-3-8b, seq_len: 1024}\nsteps: 1\nbatch: {global: 1, micro: 1}\n"
      "precision: bf16\ndata: {format: synthetic}\n",
      "llama.yaml");
  const auto kept_of_layer = [&](core::job::RecomputeKind kind) {
    job.recompute.kind = kind;
    job.model.layers = 4;
    const std::int64_t four = kept_bytes(plan_of(job));
    job.model.layers = 3;
    return (four - kept_bytes(plan_of(job))) / job.model.seq_len;
  };
  CHECK(kept_of_layer(RecomputeKind::none) == 110728);
  CHECK(kept_of_layer(RecomputeKind::selective) == 86016);
  CHECK(kept_of_layer(RecomputeKind::full) == 8192);
}

TEST_CASE(
    "full recomputation keeps one tensor of the residual stream per layer and recomputes one layer at a time",
    "[recompute][memory]") {
  core::job::JobSpec job = job_of("llama", "bf16");
  job.model.seq_len = 64;
  job.recompute.kind = core::job::RecomputeKind::full;
  job.model.layers = 8;
  const core::rank::DryRun shallow = plan_of(job);
  job.model.layers = 16;
  const core::rank::DryRun deep = plan_of(job);
  const std::int64_t tokens = 64, flow = tokens * job.model.hidden * 2;
  // The first layer keeps the embedding's output; the head keeps its sum, its norm's output and one
  // statistic. The batch is tokens, targets, positions, weights, and the bounds of its one sequence.
  CHECK(deep.memory.bytes_of("forward_to_backward") == 17 * flow + 4 * tokens);
  CHECK(deep.memory.bytes_of("forward_to_weight") == flow + 4 * 4 * tokens + kernels::align_up(2 * 4));
  for (const char* region : {"scratch", "backward_to_weight", "forward_to_weight"}) {
    CAPTURE(region);
    CHECK(deep.memory.bytes_of(region) == shallow.memory.bytes_of(region));
  }
  // Every second layer: half of what every layer saves.
  job.recompute.every = 2;
  const std::int64_t half = kept_bytes(plan_of(job));
  job.recompute = {};
  CHECK(half - kept_bytes(deep) == kept_bytes(plan_of(job)) - half);
}

TEST_CASE("layers are counted over the whole model, not over a rank's chunk", "[recompute][memory]") {
  core::job::JobSpec job = job_of("llama", "fp32");
  job.model.layers = 6;
  job.recompute = {core::job::RecomputeKind::full, 4};  // layers 0 and 4 of the model
  job.parallel.pp = 3;
  const parallel::Topology topology = test::cpu_topology(3);
  parallel::Topology machine = topology;
  machine.devices_per_node = 3;
  const parallel::Layout layout = core::rank::layout_of(job, machine);
  core::job::JobSpec none = job;
  none.recompute = {};
  const auto saved = [&](std::int64_t rank) {
    return kept_bytes(core::rank::dry_run(none, layout, rank, machine.device)) -
           kept_bytes(core::rank::dry_run(job, layout, rank, machine.device));
  };
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const parallel::ChunkSpan span = parallel::chunks_of(layout, rank).front();
    CAPTURE(rank, span.first_layer, span.layers);
    const auto holds = [&](std::int64_t layer) {
      return span.first_layer <= layer && layer < span.first_layer + span.layers;
    };
    const std::int64_t in_flight = 3 - rank, tokens = job.model.seq_len;
    const std::int64_t per_layer = tokens * (bytes_per_token(job.model, core::job::RecomputeKind::none, 4) -
                                             bytes_per_token(job.model, core::job::RecomputeKind::full, 4));
    CHECK(saved(rank) == in_flight * per_layer * (holds(0) + holds(4)));
  }
}

TEST_CASE("hardware FLOPs count recomputation and model FLOPs do not", "[recompute][memory]") {
  core::job::JobSpec job = job_of("llama", "fp32");
  // Large enough that products dominate.
  job.model.hidden = 256;
  job.model.head_dim = 64;
  job.model.ffn = 512;
  job.model.seq_len = 64;
  const core::job::ModelOptions& m = job.model;
  const double model_flops = core::job::flops_per_token(m), none = plan_of(job).flops_per_step;
  const double qkv = static_cast<double>((m.heads + 2 * m.kv_heads) * m.head_dim * m.hidden);
  const double out = static_cast<double>(m.heads * m.head_dim * m.hidden),
               up = static_cast<double>(2 * m.ffn * m.hidden);
  // Two products, half of which the causal mask removes.
  const double core_attention = 2.0 * static_cast<double>(m.heads * m.head_dim * m.seq_len);
  const double layer_tokens = static_cast<double>(job.tokens_per_step() * m.layers);
  job.recompute.kind = core::job::RecomputeKind::selective;
  const double selective = plan_of(job).flops_per_step - none;
  job.recompute.kind = core::job::RecomputeKind::full;
  const double full = plan_of(job).flops_per_step - none;
  // No gradient needs the output of the down projection.
  const double full_products = layer_tokens * (2 * (qkv + out + up) + core_attention);
  CHECK(full > full_products);
  CHECK(full < 1.05 * full_products);
  CHECK(selective > layer_tokens * core_attention);
  CHECK(selective < 0.25 * full);
  CHECK(core::job::flops_per_token(job.model) == model_flops);
}

TEST_CASE("the error of a job with too large activations recommends recomputation", "[recompute][memory]") {
  core::job::JobSpec job = job_of("llama", "fp32");
  job.model.layers = 12;
  job.model.seq_len = 512;
  parallel::Topology topology = test::cpu_topology(1);
  const auto refusal = [&] {
    const core::rank::DryRun plan = plan_of(job);
    topology.node_memory_bytes = plan.memory.total_bytes() - 1;
    try {
      core::rank::require_fits(std::span(&plan, 1), job, topology, 0);
    } catch (const base::CapacityError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(refusal(), Catch::Contains("try recompute: {kind: full}"));
  job.recompute.kind = core::job::RecomputeKind::full;
  CHECK_THAT(refusal(), Catch::Contains("try a smaller model") && !Catch::Contains("recompute"));
}
