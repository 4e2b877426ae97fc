// Adapters get the gradients that follow from the dense weights, on every layout. No other weight changes.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/spec/write.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"
#include "tests/core/layer_models.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

using core::model::ParamId;

constexpr std::int64_t kLoraSteps = 6;

/// Five layers, so that pipelines split unevenly; two key/value heads, so that tp 4 replicates them.
core::job::JobSpec lora_job(const std::string& lora, const std::string& precision = "fp32") {
  return core::spec::parse_job(
      "name: lora\nseed: 5\ndevice: cpu\n"
      "model: {from: base, layers: 5, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16}\n"
      "lora: " +
          lora +
          "\n"
          "batch: {global: 8, micro: 1}\nprecision: " +
          precision +
          "\n"
          "optimizer: {name: adamw, lr: 2.0e-2, weight_decay: 0.01, schedule: {kind: constant, warmup: 2}}\n"
          "steps: 20\ndata: {format: synthetic}\n",
      "lora.yaml");
}

struct LoraCurve {
  std::vector<double> loss, norm;
};

LoraCurve lora_run(const core::job::JobSpec& job, std::int64_t steps = kLoraSteps) {
  std::vector<LoraCurve> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    LoraCurve& curve = curves[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 1; step <= steps; ++step) {
      const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
      curve.loss.push_back(report.loss);
      curve.norm.push_back(report.grad_norm);
    }
    test::require_as_planned(cpu);
  });
  for (const LoraCurve& curve : curves) {
    CHECK(curve.loss == curves[0].loss);
    CHECK(curve.norm == curves[0].norm);
  }
  return curves[0];
}

ParamId id_of(const core::model::ParamStore& params, const std::string& name) {
  for (ParamId id = 0; id < params.count(); ++id)
    if (params.info(id).name == name) return id;
  return core::model::kNoParam;
}

std::vector<double> values_of(const kernels::Tensor& t) {
  const float* begin = t.as<float>();
  return {begin, begin + t.numel()};
}

/// The bytes of the weights that are not trained.
std::vector<std::byte> frozen_bytes(core::train::Trainer& trainer) {
  std::vector<std::byte> bytes;
  for (std::size_t v = 0; v < trainer.params().views(); ++v) {
    const core::model::ParamView& view = trainer.params().view(v);
    if (view.trainable()) continue;
    for (const core::model::StatePart& part : view.state_parts()) {
      CHECK(part.states.empty());
      CHECK_FALSE(part.grads.defined());
      CHECK_FALSE(part.params.defined());
      bytes.insert(bytes.end(), part.master.data, part.master.data + part.master.bytes());
    }
  }
  return bytes;
}

/// Rows of a merged weight that belong to projection `i`.
struct Rows {
  std::int64_t first = 0, count = 0;
};

/// One rank's curve and its deviation when only the order of its sums changes, as in layouts_test.cpp.
struct LoraReference {
  LoraCurve curve;
  double loss_bound = 0, norm_bound = 0;
};
const LoraReference& lora_reference(const std::string& name, core::job::JobSpec job) {
  static std::map<std::string, LoraReference> known;
  const auto it = known.find(name);
  if (it != known.end()) return it->second;
  LoraReference made;
  made.curve = lora_run(job);
  for (const std::int64_t micro : {2, 4, 8}) {
    job.batch.micro = micro;
    const LoraCurve other = lora_run(job);
    for (std::size_t i = 0; i < other.loss.size(); ++i) {
      made.loss_bound =
          std::max(made.loss_bound, std::abs(other.loss[i] - made.curve.loss[i]) / made.curve.loss[i]);
      made.norm_bound =
          std::max(made.norm_bound, std::abs(other.norm[i] - made.curve.norm[i]) / made.curve.norm[i]);
    }
  }
  // Without AVX-512 other microbatches change fewer sums: a layout was seen 5.3 times as far off as they are.
  const double margin = kernels::detect_cpu(1).isa >= kernels::Isa::avx512 ? 4 : 8;
  made.loss_bound *= margin, made.norm_bound *= margin;
  return known.emplace(name, made).first->second;
}

struct LoraLayout {
  std::int64_t tp = 1, pp = 1, dp = 1, zero = 1;
  bool sequence_parallel = false;
  parallel::ScheduleKind schedule = parallel::ScheduleKind::one_f_one_b;
  std::int64_t virtual_stages = 1;
  core::job::RecomputeOptions recompute = {};
  std::int64_t zero_group = 0;
};

core::job::JobSpec with_lora_layout(core::job::JobSpec job, const LoraLayout& c) {
  job.parallel.tp = c.tp, job.parallel.pp = c.pp, job.parallel.dp = c.dp, job.parallel.zero = c.zero;
  job.parallel.sequence_parallel = c.sequence_parallel;
  job.parallel.schedule = c.schedule;
  job.parallel.virtual_stages = c.virtual_stages;
  job.recompute = c.recompute;
  job.parallel.zero_group = c.zero_group;
  return job;
}

void check_lora_layout(const std::string& name, const core::job::JobSpec& job, const LoraLayout& c) {
  CAPTURE(name, c.tp, c.pp, c.dp, c.zero, c.sequence_parallel, parallel::to_string(c.schedule),
          static_cast<int>(c.recompute.kind));
  const LoraReference& expected = lora_reference(name, job);
  const LoraCurve curve = lora_run(with_lora_layout(job, c));
  for (std::size_t i = 0; i < curve.loss.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(curve.loss[i] - expected.curve.loss[i]) <= expected.loss_bound * expected.curve.loss[i]);
    CHECK(std::abs(curve.norm[i] - expected.curve.norm[i]) <= expected.norm_bound * expected.curve.norm[i]);
  }
}

core::job::JobSpec qwen_lora_job() {
  core::job::JobSpec job = lora_job("{rank: 3, alpha: 5, targets: [q_proj, v_proj, o_proj, up_proj]}");
  job.model.qkv_bias = job.model.qk_norm = job.model.tie_embeddings = true;
  return job;
}

core::job::JobSpec gpt2_lora_job() {
  core::job::JobSpec job = lora_job("{rank: 3, alpha: 5}");
  core::job::ModelOptions& m = job.model;
  m.norm = core::job::Norm::layer;
  m.positions = core::job::Positions::learned;
  m.mlp = core::job::Mlp::gelu;
  m.linear_bias = m.tie_embeddings = true;
  core::job::settle_biases(m);
  m.kv_heads = m.heads;
  m.lora.targets = {"c_attn", "c_proj", "c_fc"};
  return job;
}

void require_lora_refused(const std::string& text, const std::string& message) {
  try {
    core::spec::parse_job(text, "job.yaml");
    FAIL("accepted");
  } catch (const base::Error& error) {
    CHECK_THAT(error.what(), Catch::Contains(message));
  }
}

}  // namespace

// dA = s B^T dW and dB = s dW A^T, where dW is the dense weight's gradient in the same step without adapters,
// with weights W + s B A.
TEST_CASE("gradients of adapters follow from the gradients of the dense weights", "[lora]") {
  const std::string targets = GENERATE("all-linear", "[k_proj, gate_proj]", "[q_proj, v_proj, down_proj]",
                                       "[qkv_proj, gate_up_proj, o_proj]");
  core::job::JobSpec job = lora_job("{rank: 4, alpha: 6, targets: " + targets + "}");
  core::job::JobSpec dense_job = job;
  dense_job.model.lora = {};
  core::rank::DeviceRank rank(job, test::cpu_topology(1)), dense_rank(dense_job, test::cpu_topology(1));
  rank.trainer().initialise();
  dense_rank.trainer().initialise();
  core::model::ParamStore &params = rank.trainer().params(), &dense = dense_rank.trainer().params();
  const double s = 6.0 / 4;
  const std::int64_t r = 4;
  struct Merged {
    std::string weight;
    std::vector<std::string> projections;
    std::vector<Rows> rows;
  };
  const std::vector<Merged> all = {{"qkv", {"q_proj", "k_proj", "v_proj"}, {{0, 32}, {32, 16}, {48, 16}}},
                                   {"attn_out", {"o_proj"}, {{0, 32}}},
                                   {"gate_up", {"gate_proj", "up_proj"}, {{0, 48}, {48, 48}}},
                                   {"down", {"down_proj"}, {{0, 32}}},
                                   {"qkv", {"qkv_proj"}, {{0, 64}}},
                                   {"gate_up", {"gate_up_proj"}, {{0, 96}}}};
  // Calls act(weight's id in the dense model, id of A, id of B, first row of A, of B, rows of the weight).
  const auto each_adapter = [&](const auto& act) {
    int found = 0;
    for (std::int64_t layer = 0; layer < 5; ++layer)
      for (const Merged& merged : all) {
        const std::string prefix = "layers." + std::to_string(layer) + "." + merged.weight + ".";
        std::int64_t row_a = 0, row_b = 0;
        for (std::size_t p = 0; p < merged.projections.size(); ++p) {
          if (!job.model.lora.adapts(merged.projections[p])) continue;
          act(id_of(dense, prefix + "weight"), id_of(params, prefix + "lora_a"),
              id_of(params, prefix + "lora_b"), row_a, row_b, merged.rows[p]);
          row_a += r, row_b += merged.rows[p].count, ++found;
        }
      }
    return found;
  };
  // B is 0 at the start: set other values.
  std::uint64_t drawn = 0;
  const int count = each_adapter(
      [&](ParamId w, ParamId a, ParamId b, std::int64_t row_a, std::int64_t row_b, const Rows& rows) {
        const kernels::Tensor weight = dense.master(w), ta = params.master(a), tb = params.master(b);
        const std::int64_t columns = weight.size(1);
        for (std::int64_t i = 0; i < rows.count; ++i)
          for (std::int64_t k = 0; k < r; ++k)
            tb.as<float>()[(row_b + i) * r + k] = 0.3f * kernels::uniform_at(77, drawn++);
        for (std::int64_t i = 0; i < rows.count; ++i)
          for (std::int64_t c = 0; c < columns; ++c) {
            double sum = 0;
            for (std::int64_t k = 0; k < r; ++k)
              sum += static_cast<double>(tb.as<float>()[(row_b + i) * r + k]) *
                     static_cast<double>(ta.as<float>()[(row_a + k) * columns + c]);
            weight.as<float>()[(rows.first + i) * columns + c] += static_cast<float>(s * sum);
          }
      });
  CHECK(count == 5 * static_cast<int>(job.model.lora.targets.size()));
  rank.trainer().publish();
  dense_rank.trainer().publish();
  // Masters change in the step: keep the values that the gradients belong to.
  std::map<ParamId, std::vector<double>> before;
  for (ParamId id = 0; id < params.count(); ++id)
    if (params.info(id).trainable) before[id] = values_of(params.master(id));
  const double loss = test::step_on(rank.trainer(), job, 1).loss;
  CHECK(loss == Approx(test::step_on(dense_rank.trainer(), dense_job, 1).loss).epsilon(1e-6));
  each_adapter(
      [&](ParamId w, ParamId a, ParamId b, std::int64_t row_a, std::int64_t row_b, const Rows& rows) {
        CAPTURE(params.info(a).name, rows.first);
        const std::vector<double> dw = values_of(dense.grad(w)), da = values_of(params.grad(a)),
                                  db = values_of(params.grad(b)), &va = before[a], &vb = before[b];
        const std::int64_t columns = dense.info(w).shard.logical[1];
        const auto at = [](std::int64_t row, std::int64_t width, std::int64_t column) {
          return static_cast<std::size_t>(row * width + column);
        };
        // Gradients of A, then of B: the largest difference, and the largest value.
        double apart[2] = {}, most[2] = {};
        for (std::int64_t k = 0; k < r; ++k)
          for (std::int64_t c = 0; c < columns; ++c) {
            double expected = 0;
            for (std::int64_t i = 0; i < rows.count; ++i)
              expected += s * vb[at(row_b + i, r, k)] * dw[at(rows.first + i, columns, c)];
            apart[0] = std::max(apart[0], std::abs(da[at(row_a + k, columns, c)] - expected));
            most[0] = std::max(most[0], std::abs(expected));
          }
        for (std::int64_t i = 0; i < rows.count; ++i)
          for (std::int64_t k = 0; k < r; ++k) {
            double expected = 0;
            for (std::int64_t c = 0; c < columns; ++c)
              expected += s * dw[at(rows.first + i, columns, c)] * va[at(row_a + k, columns, c)];
            apart[1] = std::max(apart[1], std::abs(db[at(row_b + i, r, k)] - expected));
            most[1] = std::max(most[1], std::abs(expected));
          }
        // Sums of some hundred fp32 products, through five layers.
        CHECK(apart[0] < 1e-5 * most[0]);
        CHECK(apart[1] < 1e-5 * most[1]);
      });
}

TEST_CASE("an adapter starts as zero, and training it changes no other weight", "[lora]") {
  const core::job::JobSpec job = lora_job("{rank: 4}", GENERATE("fp32", "bf16"));
  CHECK(job.model.lora.alpha == 8);
  CHECK(job.model.lora.targets.size() == 7);
  core::job::JobSpec plain = job;
  plain.model.lora = {};
  core::rank::DeviceRank rank(job, test::cpu_topology(2)), plain_rank(plain, test::cpu_topology(2));
  rank.trainer().initialise();
  plain_rank.trainer().initialise();
  const std::vector<std::byte> before = frozen_bytes(rank.trainer());
  REQUIRE_FALSE(before.empty());
  const core::model::ParamStore& params = rank.trainer().params();
  // As in PEFT: uniform up to 1 / sqrt(32).
  const std::vector<double> a = values_of(params.master(id_of(params, "layers.0.qkv.lora_a")));
  CHECK(*std::max_element(a.begin(), a.end()) == Approx(1 / std::sqrt(32.0)).epsilon(0.05));
  CHECK(*std::min_element(a.begin(), a.end()) == Approx(-1 / std::sqrt(32.0)).epsilon(0.05));
  const std::vector<double> losses = test::losses(rank.trainer(), job, 1, 5);
  // Without adapters gate, up and their product are one operator, which rounds differently in bf16.
  if (job.precision.name == "fp32")
    CHECK(losses[0] == Approx(test::losses(plain_rank.trainer(), plain, 1, 1)[0]).epsilon(1e-6));
  CHECK(losses.back() < losses.front() - 0.02);
  CHECK(frozen_bytes(rank.trainer()) == before);
}

TEST_CASE("adapters train alike on every layout", "[lora][layouts]") {
  using enum parallel::ScheduleKind;
  const core::job::JobSpec llama = lora_job("{rank: 4}"), qwen = qwen_lora_job();
  CHECK(lora_reference("llama", llama).loss_bound > 0);
  CHECK(lora_reference("llama", llama).loss_bound < 1e-4);
  std::vector<LoraLayout> layouts{
      {.tp = 2},
      {.tp = 4},
      {.tp = 4, .sequence_parallel = true},
      {.pp = 2, .schedule = zb_h1},
      {.dp = 2, .zero = 0},
      {.dp = 2, .zero = 1},
      {.dp = 2, .zero = 2},
      {.dp = 2, .zero = 3},
      {.dp = 4, .zero = 3, .zero_group = 2},
      {.tp = 2,
       .dp = 2,
       .zero = 3,
       .sequence_parallel = true,
       .recompute = {core::job::RecomputeKind::full, 2}},
      {.tp = 2, .pp = 2, .dp = 2, .zero = 2, .sequence_parallel = true, .schedule = zb_h1},
  };
  if (test::runs_full()) {
    layouts.push_back({.pp = 4, .schedule = gpipe});
    layouts.push_back({.pp = 2, .schedule = interleaved, .virtual_stages = 2});
    layouts.push_back({.tp = 2, .recompute = {core::job::RecomputeKind::selective}});
    for (const std::int64_t zero : {0, 1, 2, 3})
      layouts.push_back({.tp = 4, .pp = 2, .dp = 2, .zero = zero, .sequence_parallel = zero % 2 == 1});
  }
  std::size_t turn = 0;
  for (const LoraLayout& layout : layouts) {
    if (!test::in_slice(turn++, 2)) continue;
    check_lora_layout("llama", llama, layout);
    if (layout.zero != 1 || test::runs_full()) check_lora_layout("qwen", qwen, layout);
  }
  check_lora_layout("qwen", qwen, {.tp = 4, .sequence_parallel = true});
  // One adapter for queries, keys and values together, one for gate and up, and GPT-2's.
  const core::job::JobSpec together = lora_job("{rank: 4, targets: [qkv_proj, gate_up_proj, down_proj]}"),
                           gpt2 = gpt2_lora_job();
  for (const LoraLayout& layout :
       {LoraLayout{.tp = 4, .sequence_parallel = true}, LoraLayout{.tp = 2, .pp = 2, .dp = 2, .zero = 3}}) {
    check_lora_layout("together", together, layout);
    check_lora_layout("gpt2", gpt2, layout);
  }
  // Latents, whose first projection is whole on every rank.
  for (const std::string name : {"latent", "latent-direct"}) {
    core::job::JobSpec latent = llama;
    test::set_layers(name, latent.model);
    latent.model.lora.targets = {"q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "down_proj"};
    if (name == "latent-direct") latent.model.lora.targets.front() = "q_proj";
    for (const LoraLayout& layout :
         {LoraLayout{.tp = 2, .recompute = {core::job::RecomputeKind::selective}},
          LoraLayout{.tp = 2, .pp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .schedule = zb_h1},
          LoraLayout{.tp = 2, .dp = 2, .zero = 2, .sequence_parallel = true}})
      check_lora_layout(name, latent, layout);
  }
  // A model with norms after the adapted layers and with per-head vectors, which are not trained.
  core::job::JobSpec gemma = llama;
  test::set_layers("gemma2", gemma.model);
  gemma.model.attention.sinks = true;
  check_lora_layout("gemma", gemma,
                    {.tp = 2, .pp = 2, .dp = 2, .zero = 3, .sequence_parallel = true, .schedule = zb_h1});
}

TEST_CASE("collectives behind the GEMMs of adapted layers change no bit", "[lora][layouts]") {
  for (const bool sequence_parallel : {false, true}) {
    CAPTURE(sequence_parallel);
    core::job::JobSpec job =
        with_lora_layout(lora_job("{rank: 4}"), {.tp = 2, .sequence_parallel = sequence_parallel});
    job.batch.micro = 8;  // 128 tokens: enough rows to split
    job.parallel.overlap_tp_backward = false;
    const LoraCurve whole = lora_run(job, 3);
    job.parallel.tp_overlap_chunks = 2, job.parallel.overlap_tp_backward = true;
    const LoraCurve cut = lora_run(job, 3);
    if (kernels::detect_cpu(1).isa >= kernels::Isa::avx512) {
      CHECK(cut.loss == whole.loss);
      CHECK(cut.norm == whole.norm);
      continue;
    }
    // oneDNN's order of sums depends on the number of rows without AVX-512.
    const LoraReference& expected = lora_reference("llama", lora_job("{rank: 4}"));
    for (std::size_t i = 0; i < cut.loss.size(); ++i) {
      CHECK(std::abs(cut.loss[i] - whole.loss[i]) <= expected.loss_bound * whole.loss[i]);
      CHECK(std::abs(cut.norm[i] - whole.norm[i]) <= expected.norm_bound * whole.norm[i]);
    }
  }
}

TEST_CASE("the gradients of adapters on any projection of latents have a norm by group", "[lora]") {
  for (const std::string targets :
       {"kv_b_proj", "q_a_proj, gate_proj", "kv_a_proj_with_mqa", "q_b_proj, o_proj"}) {
    CAPTURE(targets);
    core::job::JobSpec job = core::spec::parse_job(
        "model: {from: base, layers: 2, hidden: 32, heads: 4, ffn: 48, vocab: 97, seq_len: 16, mla: "
        "{q_lora_rank: 12, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 4, v_head_dim: 8}}\n"
        "lora: {rank: 4, targets: [" +
            targets +
            "]}\nbatch: {global: 8, micro: 1}\nsteps: 2\ndata: {format: synthetic}\n"
            "metrics: {grad_norms: {every: 1}}\n",
        "a");
    core::rank::DeviceRank rank(job, test::cpu_topology(1));
    const std::vector<std::string>& groups = rank.trainer().norm_groups();
    CHECK(std::find(groups.begin(), groups.end(), "adapters.attention") != groups.end());
    CHECK((groups.size() == 2) == (targets.find("gate_proj") != std::string::npos));
    CHECK(test::step_on(rank.trainer(), job, 1).grad_norm >= 0);
  }
}

TEST_CASE("gradients, masters and moments exist for the adapters only", "[lora]") {
  core::job::JobSpec job = lora_job("{rank: 2, targets: [q_proj, v_proj]}", "bf16");
  const core::job::ParameterCount count = core::job::count_parameters(job.model);
  CHECK(count.adapters == 5 * 2 * (32 + 32 + 32 + 16));
  const double attention = 6.0 * 5 * 32 * 16;
  CHECK(core::job::flops_per_token(job.model) ==
        4.0 * static_cast<double>(count.matmul) + 6.0 * static_cast<double>(count.adapters) + attention);
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  std::map<std::string, std::int64_t> terms;
  for (const auto& region : rank.plan().memory.regions)
    if (region.name == "persistent")
      for (const auto& [term, bytes] : region.terms) terms[term] += bytes;
  // Each tensor and unit is rounded up: less than 1.5 times the exact size, and far below that of all
  // weights.
  CHECK(terms["moments"] >= 8 * count.adapters);
  CHECK(terms["moments"] < 12 * count.adapters);
  CHECK(terms["gradients"] < 6 * count.adapters);
  CHECK(terms["master_weights"] < 6 * count.adapters);
  CHECK(terms["parameters"] >= 2 * (count.total + count.adapters));
}

TEST_CASE("adapters that nothing can train are refused", "[lora][spec]") {
  const std::string rest = "batch: {global: 8, micro: 1}\nsteps: 2\ndata: {format: synthetic}\n",
                    model = "layers: 2, hidden: 32, heads: 4, ffn: 48, vocab: 97, seq_len: 16}\n";
  require_lora_refused("model: {" + model + "lora: {rank: 4}\n" + rest, "name them in model.from");
  require_lora_refused("model: {from: base, " + model + "lora: {rank: 4, targets: [q_proj, query]}\n" + rest,
                       "'query' is not a projection that can be adapted: set it to");
  require_lora_refused(
      "model: {from: base, mlp: gelu, " + model + "lora: {rank: 4, targets: [q_proj]}\n" + rest,
      "'q_proj' is not a projection that can be adapted: set it to all-linear, c_attn, c_proj");
  require_lora_refused(
      "model: {from: base, " + model + "lora: {rank: 4, targets: [qkv_proj, k_proj]}\n" + rest,
      "qkv_proj adapts k_proj too: leave one of them out");
  require_lora_refused(
      "model: {from: base, " + model + "lora: {rank: 4, targets: [all-linear, gate_up_proj]}\n" + rest,
      "gate_up_proj adapts gate_proj too: leave one of them out");
  const core::job::JobSpec gpt2 =
      core::spec::parse_job("model: {from: base, mlp: gelu, " + model + "lora: {rank: 4}\n" + rest, "a");
  CHECK(gpt2.model.lora.targets == std::vector<std::string>{"c_attn", "c_proj", "c_fc"});
  require_lora_refused("model: {from: base, " + model + "lora: {rank: 4}\noptimizer: {name: muon}\n" + rest,
                       "set it to adamw, lion or sgd");
  require_lora_refused("model: {from: base, " + model + "lora: {alpha: 4}\n" + rest, "lora.rank is 0");
  require_lora_refused("model: {from: base, " + model + "lora: {rank: 4, dropout: 0.1}\n" + rest, "dropout");
  require_lora_refused(
      "model: {from: base, mlp: gelu, mla: {kv_lora_rank: 16, qk_nope_head_dim: 12, "
      "qk_rope_head_dim: 4, v_head_dim: 8}, " +
          model + "lora: {rank: 4}\n" + rest,
      "need an MLP with a gate");
  const core::job::JobSpec job = core::spec::parse_job(
      "model: {from: base, " + model + "lora: {rank: 4, targets: [v_proj, q_proj]}\n" + rest, "a");
  CHECK(job.model.lora.targets == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(core::spec::parse_job(core::spec::to_yaml(job), "b") == job);
}
