// Masked tokens: loss and gradients are means over the counted tokens of the global batch, on every layout.
// Expected values come from jobs without masks, which tests/core/train/golden_test.cpp compares with PyTorch.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/run/worker/evaluation.h"
#include "kernels/base/error.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

/// The loss weight of predicting token s + 1 of a sample.
using WeightOf = std::function<bool(std::int64_t step, std::int64_t sample, std::int64_t s)>;

core::job::JobSpec masked_job(const std::string& precision = "fp32") {
  return core::spec::parse_job(
      "name: masked\nseed: 5\ndevice: cpu\n"
      "model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16}\n"
      "batch: {global: 8, micro: 1}\nprecision: " +
          precision +
          "\noptimizer: {name: adamw, lr: 5.0e-3, grad_clip: 0.7, schedule: {kind: constant}}\n"
          "steps: 20\ndata: {format: synthetic}\n",
      "masked.yaml");
}

/// With their balance loss, which depends on every token of a sequence.
core::job::JobSpec with_experts(core::job::JobSpec job) {
  job.model.experts = {.count = 4, .per_token = 2};
  job.loss.expert_balance = 0.05;
  return job;
}

/// How many tokens of a sample are no padding: all of them.
constexpr std::int64_t kWhole = std::numeric_limits<std::int64_t>::max();

struct MaskedCurve {
  std::vector<double> loss, norm, weight;
};

core::train::SampleBatches masked_batches(const core::train::Trainer& trainer, std::int64_t seq_len,
                                          const std::vector<std::int32_t>& samples, std::int64_t step,
                                          const WeightOf& counts, std::int64_t real = kWhole) {
  // `samples` may have longer sequences: only the first tokens of each are used.
  return {trainer.batch_shape(), [=, &samples](std::int64_t sample, core::train::HostSample& to) {
            std::copy_n(samples.begin() + sample * (seq_len + 1),
                        static_cast<std::ptrdiff_t>(to.tokens_S1.size()), to.tokens_S1.begin());
            for (std::size_t s = 0; s < to.loss_weight_S.size(); ++s)
              to.loss_weight_S[s] = counts(step, sample, static_cast<std::int64_t>(s)) ? 1.0f : 0.0f;
            to.real = std::min(to.real, real);
          }};
}

MaskedCurve run_masked(const core::job::JobSpec& job, const core::job::JobSpec& data, const WeightOf& counts,
                       std::int64_t steps = 6, std::int64_t real = kWhole) {
  std::vector<MaskedCurve> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    MaskedCurve& curve = curves[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 1; step <= steps; ++step) {
      const auto samples = test::skewed_samples(data, step);
      auto batches = masked_batches(cpu.trainer(), data.model.seq_len, samples, step, counts, real);
      const core::train::StepReport report = cpu.trainer().step(step, batches, {});
      CHECK_FALSE(report.skipped);
      curve.loss.push_back(report.loss);
      curve.norm.push_back(report.grad_norm);
      curve.weight.push_back(report.loss_weight);
    }
    test::require_as_planned(cpu);
  });
  for (const MaskedCurve& curve : curves) {
    CHECK(curve.loss == curves[0].loss);
    CHECK(curve.norm == curves[0].norm);
    CHECK(curve.weight == curves[0].weight);
  }
  return curves[0];
}

void check_close(const MaskedCurve& a, const MaskedCurve& b, double bound) {
  REQUIRE(a.loss.size() == b.loss.size());
  for (std::size_t i = 0; i < a.loss.size(); ++i) {
    CAPTURE(i);
    CHECK(a.loss[i] == Approx(b.loss[i]).epsilon(bound));
    CHECK(a.norm[i] == Approx(b.norm[i]).epsilon(bound));
  }
}

bool all_count(std::int64_t, std::int64_t, std::int64_t) { return true; }

/// Ranks have unequal counts: some samples have none, one has all, others have some. The share changes per
/// step.
bool some_count(std::int64_t step, std::int64_t sample, std::int64_t s) {
  if (sample % 3 == 1) return false;
  return sample == 0 || (7 * sample + 3 * s + step) % (2 + step % 3) == 0;
}

}  // namespace

TEST_CASE("samples without counted tokens do not change the result", "[masks]") {
  core::job::JobSpec with = masked_job(), without = with;
  without.batch.global = 5;
  const MaskedCurve masked =
      run_masked(with, with, [](std::int64_t, std::int64_t sample, std::int64_t) { return sample < 5; });
  CHECK(masked.weight == std::vector<double>(6, 5 * 16));
  // Both runs take the first samples of the larger batch.
  check_close(masked, run_masked(without, with, all_count), 1e-5);
}

TEST_CASE("a mask that counts the first tokens trains as shorter sequences do", "[masks]") {
  for (const auto optimizer : {core::job::OptimizerKind::adamw, core::job::OptimizerKind::muon}) {
    core::job::JobSpec with = masked_job(), without = with;
    with.optimizer.kind = without.optimizer.kind = optimizer;
    without.model.seq_len = 6;
    const MaskedCurve masked =
        run_masked(with, with, [](std::int64_t, std::int64_t, std::int64_t s) { return s < 6; });
    CHECK(masked.weight == std::vector<double>(6, 8 * 6));
    check_close(masked, run_masked(without, with, all_count),
                optimizer == core::job::OptimizerKind::muon ? 1e-4 : 1e-5);
  }
}

TEST_CASE("padding takes no part in a layer of experts", "[masks][experts]") {
  core::job::JobSpec with = with_experts(masked_job()), without = with;
  without.model.seq_len = 6;
  const auto first_six = [](std::int64_t, std::int64_t, std::int64_t s) { return s < 6; };
  const MaskedCurve expected = run_masked(without, with, all_count),
                    padded = run_masked(with, with, first_six, 6, 6),
                    masked = run_masked(with, with, first_six);
  check_close(padded, expected, 1e-5);
  // Tokens that do not count, unlike padding, use experts.
  CHECK(std::abs(masked.norm[0] - expected.norm[0]) > 1e-4 * expected.norm[0]);
  with.parallel.pp = 2, with.parallel.dp = 2, with.parallel.ep = 2;
  check_close(run_masked(with, with, first_six, 6, 6), expected, 2e-5);
  with.parallel.tp = 2, with.parallel.ep = 4, with.parallel.etp = 1, with.parallel.sequence_parallel = true;
  check_close(run_masked(with, with, first_six, 6, 6), expected, 2e-5);
  check_close(run_masked(with, with, first_six), masked, 2e-5);
}

TEST_CASE("a masked job is the same on every layout", "[masks][layouts]") {
  struct Case {
    std::int64_t tp, pp, dp, zero;
    parallel::ScheduleKind schedule = parallel::ScheduleKind::one_f_one_b;
    std::int64_t virtual_stages = 1;
    bool sequence_parallel = false;
  };
  using parallel::ScheduleKind;
  const bool experts = GENERATE(false, true);
  const core::job::JobSpec one = experts ? with_experts(masked_job()) : masked_job();
  const MaskedCurve expected = run_masked(one, one, some_count);
  // Counts differ, so the mean of ranks' or microbatches' means would be wrong.
  CHECK(*std::min_element(expected.weight.begin(), expected.weight.end()) <
        *std::max_element(expected.weight.begin(), expected.weight.end()));
  std::vector<Case> cases{{1, 1, 4, 0},
                          {1, 1, 2, 1},
                          {1, 1, 4, 2},
                          {1, 1, 2, 3},
                          {2, 2, 2, 1, ScheduleKind::zb_h1, 1, true},
                          {1, 2, 2, 3, ScheduleKind::interleaved, 2}};
  if (test::runs_full()) {
    cases.push_back({2, 1, 2, 3, ScheduleKind::one_f_one_b, 1, true});
    cases.push_back({4, 2, 1, 0, ScheduleKind::gpipe});
    cases.push_back({1, 4, 2, 1, ScheduleKind::zb_h1});
  }
  for (const Case& c : cases) {
    CAPTURE(c.tp, c.pp, c.dp, c.zero, parallel::to_string(c.schedule), experts);
    core::job::JobSpec job = one;
    job.parallel.tp = c.tp, job.parallel.pp = c.pp, job.parallel.dp = c.dp, job.parallel.zero = c.zero;
    job.parallel.schedule = c.schedule, job.parallel.virtual_stages = c.virtual_stages;
    job.parallel.sequence_parallel = c.sequence_parallel;
    const MaskedCurve curve = run_masked(job, one, some_count);
    CHECK(curve.weight == expected.weight);
    check_close(curve, expected, 2e-5);
  }
}

TEST_CASE("gradients that are kept in bf16 are scaled after they are summed", "[masks]") {
  core::job::JobSpec with = masked_job("{compute: bf16, params: bf16, grads: bf16, master: fp32}"),
                     without = with;
  without.batch.global = 4;
  // Half of the tokens count: the factor 2 causes no rounding, so the losses agree bit for bit.
  const MaskedCurve masked =
      run_masked(with, with, [](std::int64_t, std::int64_t sample, std::int64_t) { return sample < 4; });
  const MaskedCurve expected = run_masked(without, with, all_count);
  CHECK(masked.loss == expected.loss);
  CHECK(masked.norm == expected.norm);
}

TEST_CASE("a global batch without counted tokens updates nothing and is reported", "[masks]") {
  const core::job::JobSpec job = test::small_job(GENERATE("fp32", "bf16"));
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  test::losses(trainer, job, 1, 2);
  const std::vector<std::byte> before = test::state_of(trainer);
  const auto samples = test::skewed_samples(job, 3);
  auto batches = masked_batches(trainer, job.model.seq_len, samples, 3,
                                [](std::int64_t, std::int64_t, std::int64_t) { return false; });
  const core::train::StepReport report = trainer.step(3, batches, {});
  CHECK_FALSE(report.skipped);  // the step did not diverge
  CHECK(report.loss_weight == 0);
  CHECK(test::state_of(trainer) == before);
  CHECK_THROWS_WITH(core::run::require_counted(report.loss_weight, 3, {.first = 8, .count = 4}),
                    Catch::Contains("step 3: no token of its global batch (4 samples from number 8) counts"));
  CHECK_NOTHROW(core::run::require_counted(1, 3, {.first = 8, .count = 4}));
}

TEST_CASE("an evaluation of pairs has TRL's loss and rewards", "[evaluation][dpo]") {
  // Computed with torch: logits = beta * ((c - r) - (ref_c - ref_r)); -logsigmoid(logits).
  core::run::PreferenceMean mean(0.5);
  mean.add({-2, -3}, {-4, -3});     // logits 1: 0.31326168751822286
  mean.add({-9, -1}, {-5, -1});     // logits -2: 2.1269280110429727
  mean.add({-1, -1500}, {-1, -1});  // logits 749.5: 0
  CHECK(mean.loss() == Approx((0.31326168751822286 + 2.1269280110429727) / 3).epsilon(1e-14));
  const io::PairRewards rewards = mean.rewards();
  CHECK(rewards.accuracy == Approx(2.0 / 3));
  CHECK(rewards.margin == Approx((1 - 2 + 749.5) / 3));
  CHECK(rewards.chosen == Approx((1.0 - 2 + 0) / 3));
  CHECK(rewards.rejected == Approx(-749.5 / 3));
  core::run::PreferenceMean wrong(0.5);
  wrong.add({-1501, -1}, {-1, -1});
  CHECK(wrong.loss() == 750);  // no overflow to infinity
}

TEST_CASE("an evaluation is the mean over all tokens that count", "[masks]") {
  core::job::JobSpec job = masked_job();
  job.batch.global = 4;
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  const auto samples = test::skewed_samples(job, 1);
  const auto evaluate = [&](const WeightOf& counts) {
    auto batches = masked_batches(trainer, job.model.seq_len, samples, 1, counts);
    return trainer.evaluate(batches);
  };
  // The loss of each token alone, and the mean of some of them.
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t sample = 0; sample < 4; ++sample)
    for (std::int64_t s = 0; s < job.model.seq_len; ++s) {
      if (!some_count(1, sample, s)) continue;
      const auto alone = evaluate([=](std::int64_t, std::int64_t other_sample, std::int64_t other) {
        return other_sample == sample && other == s;
      });
      CHECK(alone.loss_weight == 1);
      sum += alone.loss;
      ++count;
    }
  const auto chosen = evaluate(some_count);
  CHECK(chosen.loss_weight == static_cast<double>(count));
  CHECK(chosen.loss == Approx(sum / static_cast<double>(count)).epsilon(1e-6));

  core::run::EvaluationMean mean(64);
  mean.add(2.0, 48);
  mean.add(0.0, 0);
  mean.add(4.0, 16);
  CHECK(mean.value() == Approx(2.5));
  CHECK(mean.sum() == Approx(2.0 * 48 + 4.0 * 16));
  CHECK(mean.counted_tokens() == Approx(64));
  CHECK_THROWS_AS(core::run::EvaluationMean(64).value(), base::DataError);
}

TEST_CASE("the losses of single samples equal evaluations of them alone, on every layout",
          "[masks][layouts]") {
  core::job::JobSpec one = masked_job();
  one.batch.global = 7;  // ranks pad
  one.evaluate.every = one.evaluate.batches = 1;
  one.evaluate.choices = {{.name = "quiz", .path = "quiz.jsonl"}};
  const auto losses_of = [&](const core::job::JobSpec& job, const WeightOf& counts) {
    std::vector<std::vector<double>> of_rank(test::ranks_of(job));
    std::vector<double> means(of_rank.size());
    test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      const auto samples = test::skewed_samples(one, 1);
      auto step = masked_batches(cpu.trainer(), one.model.seq_len, samples, 1, all_count);
      cpu.trainer().step(1, step, {});
      auto batches = masked_batches(cpu.trainer(), one.model.seq_len, samples, 1, counts);
      const auto mean = cpu.trainer().evaluate(batches);
      means[static_cast<std::size_t>(rank)] = mean.loss * mean.loss_weight;
      of_rank[static_cast<std::size_t>(rank)] = cpu.trainer().sample_losses(batches).loss;
      test::require_as_planned(cpu);
    });
    for (const auto& losses : of_rank) CHECK(losses == of_rank[0]);
    return std::pair(of_rank[0], means[0]);
  };
  const auto [expected, whole] = losses_of(one, some_count);
  REQUIRE(expected.size() == 7);
  double sum = 0;
  for (std::int64_t sample = 0; sample < 7; ++sample) {
    const auto alone = losses_of(one, [&](std::int64_t step, std::int64_t other, std::int64_t s) {
      return other == sample && some_count(step, other, s);
    });
    CHECK(expected[static_cast<std::size_t>(sample)] == Approx(alone.second).epsilon(1e-6));
    sum += expected[static_cast<std::size_t>(sample)];
  }
  CHECK(sum == Approx(whole).epsilon(1e-6));
  CHECK(expected[1] == 0);  // sample 1 has no counted token
  for (const auto& [tp, pp, dp, zero, cp] : std::vector<std::array<std::int64_t, 5>>{
           {2, 1, 1, 0, 1}, {1, 2, 2, 1, 1}, {1, 1, 4, 3, 1}, {2, 2, 1, 0, 1}, {1, 1, 2, 1, 2}}) {
    CAPTURE(tp, pp, dp, zero, cp);
    core::job::JobSpec job = one;
    job.parallel.cp = cp;
    job.parallel.tp = tp, job.parallel.pp = pp, job.parallel.dp = dp, job.parallel.zero = zero;
    job.parallel.sequence_parallel = tp > 1;
    const std::vector<double> losses = losses_of(job, some_count).first;
    for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(expected[i]).epsilon(2e-5));
  }
}
