// Direct preference optimisation: loss and gradients equal PyTorch's with TRL's formula, and are the same on
// every layout.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "io/checkpoint/safetensors.h"
#include "kernels/tensor/rng.h"
#include "parallel/tensor/head.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

/// A pair in the form of a sample.
struct PairSample {
  std::vector<std::int32_t> tokens_S1;
  std::int64_t prompt = 0, chosen = 0, end = 0;  ///< tokens: in the prompt, up to the second answer, in total
  std::array<double, 2> reference{};
};

void fill_pair(const PairSample& pair, core::train::HostSample& to) {
  to.tokens_S1 = pair.tokens_S1;
  const std::int64_t seq_len = static_cast<std::int64_t>(pair.tokens_S1.size()) - 1;
  for (std::int64_t s = 0; s < seq_len; ++s) {
    const std::int64_t target = s + 1, in_answer = target < pair.chosen ? target : target - pair.chosen;
    to.loss_weight_S[static_cast<std::size_t>(s)] =
        target < pair.end && in_answer >= pair.prompt ? 1.0f : 0.0f;
  }
  to.starts = {static_cast<std::int32_t>(pair.chosen)};
  if (pair.end < seq_len) to.starts.push_back(static_cast<std::int32_t>(pair.end));
  to.reference = pair.reference;
}

core::job::JobSpec with_pairs(core::job::JobSpec job, double beta, double label_smoothing) {
  job.loss.dpo = {.beta = beta, .label_smoothing = label_smoothing};
  job.data.packing = io::Packing::pairs;
  job.data.document_mask = job.data.reset_positions = true;
  job.data.max_documents = 3;
  return job;
}

core::train::SampleBatches batches_of(const core::train::Trainer& trainer, std::vector<PairSample> pairs) {
  return {trainer.batch_shape(),
          [pairs = std::move(pairs)](std::int64_t sample, core::train::HostSample& to) {
            fill_pair(pairs.at(static_cast<std::size_t>(sample)), to);
          }};
}

/// Random pairs of a step, of all lengths that fit.
std::vector<PairSample> drawn_pairs(const core::job::JobSpec& job, std::int64_t step) {
  std::vector<PairSample> pairs;
  for (std::int64_t i = 0; i < job.batch.global; ++i) {
    std::uint64_t place = 0;
    const auto draw = [&](std::int64_t low, std::int64_t high) {
      const auto bits = kernels::philox(kernels::hash_name("pairs", static_cast<std::uint64_t>(step)),
                                        static_cast<std::uint64_t>(i), place++);
      return low + static_cast<std::int64_t>(bits[0] % static_cast<std::uint32_t>(high - low));
    };
    PairSample pair;
    const std::int64_t tokens = job.model.seq_len + 1;
    pair.prompt = draw(1, tokens / 4);
    pair.chosen = pair.prompt + draw(1, tokens / 4);
    pair.end = i == 0 ? tokens : pair.chosen + pair.prompt + draw(1, tokens / 4);
    for (std::int64_t s = 0; s < tokens; ++s)
      pair.tokens_S1.push_back(s < pair.end ? static_cast<std::int32_t>(draw(0, job.model.vocab)) : 0);
    // Both halves have the same prompt.
    std::copy_n(pair.tokens_S1.begin(), pair.prompt, pair.tokens_S1.begin() + pair.chosen);
    pair.reference = {-1.5 * static_cast<double>(i), -7.0 + static_cast<double>(step)};
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

struct PairCurve {
  std::vector<double> loss, norm, margin, accuracy, chosen, rejected, logps;
  bool operator==(const PairCurve&) const = default;
};

/// Makes every step be computed twice.
struct Twice final : core::train::Judge {
  bool judges(std::int64_t) const override { return true; }
  core::train::StepVerdict judge(const core::train::StepOutcome& outcome) override {
    if (last.step != outcome.step) {
      last = outcome;
      return core::train::StepVerdict::again;
    }
    CHECK((outcome.loss == last.loss && outcome.grad_norm == last.grad_norm));
    return core::train::StepVerdict::update;
  }
  core::train::StepOutcome last;
};

/// Three steps, with the log-probabilities of its pairs before each.
PairCurve pair_run(const core::job::JobSpec& job) {
  std::vector<PairCurve> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    PairCurve& curve = curves[static_cast<std::size_t>(rank)];
    Twice twice;
    if (job.supervise.judges_steps()) cpu.trainer().judge_by(twice);
    for (std::int64_t step = 1; step <= 3; ++step) {
      auto batches = batches_of(cpu.trainer(), drawn_pairs(job, step));
      const std::vector<double> logps = cpu.trainer().sample_losses(batches).loss;
      curve.logps.insert(curve.logps.end(), logps.begin(), logps.end());
      const core::train::StepReport report = cpu.trainer().step(step, batches, {});
      CHECK(report.loss_weight == static_cast<double>(job.batch.global));
      REQUIRE(report.rewards);
      curve.loss.push_back(report.loss);
      curve.norm.push_back(report.grad_norm);
      curve.margin.push_back(report.rewards->margin);
      curve.accuracy.push_back(report.rewards->accuracy);
      curve.chosen.push_back(report.rewards->chosen);
      curve.rejected.push_back(report.rewards->rejected);
    }
    test::require_as_planned(cpu);
  });
  for (const PairCurve& curve : curves) CHECK(curve == curves[0]);
  return curves[0];
}

core::job::JobSpec pair_job(const std::string& lora) {
  return with_pairs(
      core::spec::parse_job(
          "name: pairs\nseed: 5\ndevice: cpu\n"
          "model: {" +
              std::string(lora.empty() ? "" : "from: base, ") +
              "layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 24}\n" + lora +
              "batch: {global: 8, micro: 1}\nprecision: fp32\n"
              "optimizer: {name: adamw, lr: 5.0e-3, schedule: {kind: constant, warmup: 2}}\n"
              "steps: 20\ndata: {format: synthetic}\n",
          "pairs.yaml"),
      0.3, 0.1);
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double bound, double least) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(std::abs(a[i] - b[i]) <= bound * std::max(std::abs(b[i]), least));
}

/// As in tests/core/train/objective_test.cpp: the order of sums differs between layouts. Rewards are
/// differences of log-probabilities that are up to 100 times larger.
constexpr double kPairBound = 2e-5;

void check_same_pairs(const PairCurve& curve, const PairCurve& expected) {
  check_close(curve.loss, expected.loss, kPairBound, 0);
  check_close(curve.norm, expected.norm, kPairBound, 0);
  check_close(curve.logps, expected.logps, kPairBound, 0);
  check_close(curve.margin, expected.margin, kPairBound, 10);
  check_close(curve.chosen, expected.chosen, kPairBound, 10);
  check_close(curve.rejected, expected.rejected, kPairBound, 10);
  CHECK(curve.accuracy == expected.accuracy);
}

struct GoldenPairs {
  explicit GoldenPairs(const std::string& name) {
    std::ifstream file(std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/" + name + ".safetensors",
                       std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    REQUIRE(text.size() > 8);
    const auto bytes = std::as_bytes(std::span(text));
    const io::SafetensorsHeader header =
        io::parse_safetensors(bytes, static_cast<std::int64_t>(bytes.size()));
    for (const io::StoredTensor& t : header.tensors)
      data[t.name].assign(text.begin() + header.data_offset + t.begin,
                          text.begin() + header.data_offset + t.end);
  }
  template <class T>
  std::vector<T> get(const std::string& name) const {
    const std::vector<char>& raw = data.at(name);
    std::vector<T> out(raw.size() / sizeof(T));
    std::memcpy(out.data(), raw.data(), raw.size());
    return out;
  }
  std::map<std::string, std::vector<char>> data;
};

/// Largest difference over the largest reference value.
double far_from(const std::vector<float>& reference, const float* values) {
  double difference = 0, scale = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(values[i]) - reference[i]));
    scale = std::max(scale, std::abs(static_cast<double>(reference[i])));
  }
  return difference / scale;
}

}  // namespace

TEST_CASE("losses, rewards, gradients and weights of pairs equal PyTorch's with TRL's formula",
          "[dpo][golden]") {
  const auto [name, beta, smoothing] =
      GENERATE(std::tuple("dpo_llama", 0.5, 0.0), std::tuple("dpo_smooth", 0.3, 0.1));
  CAPTURE(name);
  const GoldenPairs initial("llama"), golden(name);
  const core::job::JobSpec job = with_pairs(test::small_job(), beta, smoothing);
  core::rank::DeviceRank rank(job, test::cpu_topology(2));
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  core::model::ParamStore& params = trainer.params();
  for (core::model::ParamId id = 0; id < params.count(); ++id) {
    const auto values = initial.get<float>("init." + params.info(id).name);
    rank.backend().write(trainer.stream(), std::as_bytes(std::span(values)), params.master(id));
  }
  trainer.publish();

  const auto tokens = golden.get<std::int32_t>("tokens"), ends = golden.get<std::int32_t>("ends");
  const auto reference = golden.get<double>("reference");
  const auto step_pairs = [&](std::int64_t step) {
    std::vector<PairSample> pairs;
    for (std::int64_t i = 0; i < job.batch.global; ++i) {
      const std::int64_t at = (step - 1) * job.batch.global + i, width = job.model.seq_len + 1;
      PairSample& pair = pairs.emplace_back();
      pair.tokens_S1.assign(tokens.begin() + at * width, tokens.begin() + (at + 1) * width);
      const auto end = [&](std::int64_t n) { return ends.at(static_cast<std::size_t>(3 * at + n)); };
      pair.prompt = end(0), pair.chosen = end(1), pair.end = end(2);
      const auto first = static_cast<std::size_t>(2 * at);
      pair.reference = {reference[first], reference[first + 1]};
    }
    return pairs;
  };
  // The reference from our own forward pass: single precision through some hundred operations, as in
  // golden_test.cpp.
  for (std::int64_t step = 1; step <= job.steps; ++step) {
    auto batches = batches_of(trainer, step_pairs(step));
    const std::vector<double> logps = trainer.sample_losses(batches).loss;
    for (std::size_t i = 0; i < logps.size(); ++i)
      CHECK(logps[i] ==
            Approx(reference[static_cast<std::size_t>(step - 1) * logps.size() + i]).epsilon(5e-6));
  }
  const auto loss = golden.get<double>("loss"), norm = golden.get<double>("grad_norm"),
             margin = golden.get<double>("margin"), accuracy = golden.get<double>("accuracy"),
             chosen = golden.get<double>("chosen"), rejected = golden.get<double>("rejected");
  for (std::int64_t step = 1; step <= job.steps; ++step) {
    CAPTURE(step);
    const auto at = static_cast<std::size_t>(step - 1);
    auto batches = batches_of(trainer, step_pairs(step));
    const core::train::StepReport report = trainer.step(step, batches, {});
    REQUIRE(report.rewards);
    // AdamW amplifies rounding from step to step, as in golden_test.cpp; rewards are differences of
    // log-probabilities of up to 60.
    const double bound = 5e-6 * static_cast<double>(step);
    CHECK(report.loss == Approx(loss[at]).epsilon(bound).margin(bound));
    CHECK(report.grad_norm == Approx(norm[at]).epsilon(1e-4));
    CHECK(report.rewards->margin == Approx(margin[at]).margin(60 * bound));
    CHECK(report.rewards->chosen == Approx(chosen[at]).margin(60 * bound));
    CHECK(report.rewards->rejected == Approx(rejected[at]).margin(60 * bound));
    if (step > 1) CHECK(report.rewards->accuracy == accuracy[at]);  // step 1: ties except for rounding
    for (core::model::ParamId id = 0; id < params.count(); ++id) {
      CAPTURE(params.info(id).name);
      if (step == 1)
        CHECK(far_from(golden.get<float>("grad." + params.info(id).name), params.grad(id).as<float>()) <
              2e-5);
      if (step == job.steps)
        CHECK(far_from(golden.get<float>("final." + params.info(id).name), params.master(id).as<float>()) <
              2e-3);
    }
  }
}

TEST_CASE("losses and gradients of pairs are the same on every layout, with adapters too", "[dpo][layouts]") {
  const std::string kind = GENERATE("whole", "adapters", "experts");
  if (kind != "whole" && !test::in_slice(kind == "adapters" ? 0 : 1, 2)) return;
  CAPTURE(kind);
  core::job::JobSpec one =
      pair_job(kind == "adapters" ? "lora: {rank: 4, targets: [q_proj, v_proj, down_proj]}\n" : "");
  if (kind == "experts") one.model.experts = {.count = 4, .per_token = 2, .shared_ffn = 24, .bias = true};
  const PairCurve expected = pair_run(one);
  CHECK(expected.margin[0] != expected.margin[2]);
  using enum parallel::ScheduleKind;
  std::vector<parallel::ParallelOptions> layouts(5);
  layouts[0].tp = 2, layouts[0].sequence_parallel = true;
  layouts[1].pp = 2, layouts[1].schedule = zb_h1;
  layouts[2].dp = 2, layouts[2].zero = 3;
  layouts[3].tp = 2, layouts[3].pp = 2, layouts[3].dp = 2, layouts[3].zero = 2;
  layouts[4].dp = 3, layouts[4].zero = 1;  // 8 pairs: the last microbatch is padded
  for (const parallel::ParallelOptions& layout : layouts) {
    CAPTURE(layout.tp, layout.pp, layout.dp, layout.zero);
    core::job::JobSpec job = one;
    job.parallel = layout;
    check_same_pairs(pair_run(job), expected);
  }
  core::job::JobSpec larger = one;
  larger.batch.micro = 4;
  check_same_pairs(pair_run(larger), expected);
  if (kind == "experts") {
    core::job::JobSpec apart = one;
    apart.parallel.dp = apart.parallel.ep = 2;
    check_same_pairs(pair_run(apart), expected);
    apart.parallel.tp = 2, apart.parallel.etp = 1, apart.parallel.sequence_parallel = true;
    check_same_pairs(pair_run(apart), expected);
  }
  larger.recompute = {core::job::RecomputeKind::full, 1};
  check_same_pairs(pair_run(larger), expected);
}

TEST_CASE("steps of pairs that are computed twice give the same results", "[dpo][judge]") {
  core::job::JobSpec job = pair_job("");
  job.parallel.dp = 2, job.parallel.zero = 2;
  const PairCurve plain = pair_run(job);
  job.supervise.verify_every = 1;
  CHECK(pair_run(job) == plain);
  // A power of two as the loss scale changes no bit of fp32, and computations beyond the first none of the
  // scale.
  job.precision.loss_scale = {.dynamic = true, .initial = 4096, .window = 2};
  CHECK(pair_run(job) == plain);
  job.supervise.verify_every = 0;
  CHECK(pair_run(job) == plain);
}

TEST_CASE("a pair longer than a chunk of the head has the same loss as in one chunk", "[dpo]") {
  // At this vocabulary a chunk has 128 tokens on one rank, and holds the pair on four.
  core::job::JobSpec job = with_pairs(test::small_job(), 0.3, 0);
  job.model.layers = 1, job.model.hidden = 8, job.model.heads = 4, job.model.kv_heads = 4,
  job.model.head_dim = 2;
  job.model.ffn = 8, job.model.vocab = 66000, job.model.seq_len = 300;
  job.batch = {.global = 2, .micro = 2};
  REQUIRE(parallel::head_chunk_tokens(600, {66000, 8, kernels::DType::f32}, kernels::Target{}) == 128);
  REQUIRE(parallel::head_chunk_tokens(600, {16512, 8, kernels::DType::f32}, kernels::Target{}) >= 300);
  const PairCurve cut = pair_run(job);
  job.parallel.tp = 4;
  check_same_pairs(pair_run(job), cut);
}

TEST_CASE("the gradients used in training are those of the loss of pairs", "[dpo]") {
  core::job::JobSpec job = pair_job("");
  job.model.layers = 2;
  // With as many as there are, no token changes its experts.
  if (GENERATE(false, true)) job.model.experts = {.count = 3, .per_token = 3, .normalise = false};
  const std::vector<PairSample> pairs = drawn_pairs(job, 1);
  const auto step_of = [&](core::train::Trainer& trainer) {
    auto batches = batches_of(trainer, pairs);
    const core::train::StepReport report = trainer.step(1, batches, {});
    return std::pair(report.loss, report.grad_norm);
  };
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  const double norm = step_of(rank.trainer()).second;
  // The slope along the gradient is its norm: as in objective_test.cpp.
  const auto slope = [&](double length) {
    double ends[2] = {};
    for (const int side : {0, 1}) {
      core::rank::DeviceRank moved(job, test::cpu_topology(1));
      moved.trainer().initialise();
      core::model::ParamStore& params = moved.trainer().params();
      for (core::model::ParamId id = 0; id < params.count(); ++id) {
        float* w = params.master(id).as<float>();
        const kernels::Tensor g = rank.trainer().params().grad(id);
        for (std::int64_t i = 0; i < g.numel(); ++i)
          w[i] = static_cast<float>(static_cast<double>(w[i]) + (side == 0 ? -length : length) / norm *
                                                                    static_cast<double>(g.as<float>()[i]));
      }
      moved.trainer().publish();
      ends[side] = step_of(moved.trainer()).first;
    }
    return (ends[1] - ends[0]) / (2 * length);
  };
  CHECK((4 * slope(2e-3) - slope(4e-3)) / 3 == Approx(norm).epsilon(1e-3));
}
