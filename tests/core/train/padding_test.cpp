// Global batches that micro x dp does not divide: the last microbatches are padded, and nothing else changes.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

core::job::JobSpec uneven_job(std::int64_t experts = 0) {
  core::job::JobSpec job = core::spec::parse_job(
      "name: uneven\nseed: 5\ndevice: cpu\n"
      "model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16}\n"
      "batch: {global: 7, micro: 1}\nprecision: fp32\n"
      "optimizer: {name: adamw, lr: 5.0e-3, grad_clip: 0.7, schedule: {kind: constant}}\n"
      "steps: 20\ndata: {format: synthetic}\n",
      "uneven.yaml");
  if (experts > 0) job.model.experts = {.count = experts, .per_token = 2}, job.loss.expert_balance = 0.05;
  return job;
}

/// Losses and norms of six steps.
std::vector<double> uneven_curve(const core::job::JobSpec& job) {
  std::vector<std::vector<double>> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    std::vector<double>& curve = curves[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 1; step <= 6; ++step) {
      const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
      CHECK(report.loss_weight == 7 * 16);  // padding has no weight
      curve.push_back(report.loss);
      curve.push_back(report.grad_norm);
    }
    test::require_as_planned(cpu);
  });
  for (const std::vector<double>& curve : curves) CHECK(curve == curves[0]);
  return curves[0];
}

}  // namespace

TEST_CASE("ranks take floor or ceiling of the microbatches, the last ones padded", "[padding]") {
  // 7 samples as microbatches of 2 on 3 ranks: two microbatches each, the second with one sample in all.
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const core::train::BatchShape shape{.seq_len = 2, .micro = 2, .dp = 3, .dp_rank = rank, .global = 7};
    std::vector<std::int64_t> read;
    core::train::SampleBatches batches(shape, [&](std::int64_t sample, core::train::HostSample& to) {
      read.push_back(sample);
      std::fill(to.tokens_S1.begin(), to.tokens_S1.end(), static_cast<std::int32_t>(sample + 1));
    });
    CHECK(batches.next({0, true}).loss_weight_T == std::vector<float>(4, 1.0f));
    const core::train::HostBatch& last = batches.next({1, true});
    const bool has_last = rank == 0;
    CHECK(last.loss_weight_T == (has_last ? std::vector<float>{1, 1, 0, 0} : std::vector<float>(4, 0.0f)));
    CHECK(last.tokens_T ==
          (has_last ? std::vector<std::int32_t>{7, 7, 0, 0} : std::vector<std::int32_t>(4, 0)));
    CHECK(last.targets_T == last.tokens_T);
    CHECK(last.cu_seqlens == std::vector<std::int32_t>{0, 2, 4});
    CHECK(last.positions_T == std::vector<std::int32_t>{0, 1, 0, 1});
    CHECK(last.loss_weight == (has_last ? 2 : 0));
    CHECK(last.real_T.empty());
    std::vector<std::int64_t> expected{2 * rank, 2 * rank + 1};
    if (has_last) expected.push_back(6);
    CHECK(read == expected);
  }
}

TEST_CASE("every chunk of a model with experts gets loss weights and knows padding from tokens",
          "[padding]") {
  const bool tokens = GENERATE(true, false);
  const std::int64_t cp = GENERATE(1, 2);
  for (std::int64_t rank = 0; rank < cp; ++rank) {
    const core::train::BatchShape shape{
        .seq_len = 4, .micro = 2, .cp = cp, .cp_rank = rank, .global = 3, .experts = true};
    core::train::SampleBatches batches(shape, [](std::int64_t, core::train::HostSample& to) {
      CHECK(to.real == 4);
      to.real = 3;
      to.loss_weight_S = {0, 1, 0, 0};
    });
    const core::train::HostBatch& last = batches.next({1, tokens});
    // With cp 2, rank 0 has the first and the last token of a sequence.
    const auto share = [&](const std::vector<std::int32_t>& all) {
      if (cp == 1) return all;
      std::vector<std::int32_t> kept;
      for (const int at : rank == 0 ? std::vector{0, 4, 3, 7} : std::vector{1, 5, 2, 6})
        kept.push_back(all[static_cast<std::size_t>(at)]);
      return kept;
    };
    CHECK(last.real_T == share({1, 1, 1, 0, 0, 0, 0, 0}));
    CHECK(std::vector<std::int32_t>(last.loss_weight_T.begin(), last.loss_weight_T.end()) ==
          share({0, 1, 0, 0, 0, 0, 0, 0}));
    CHECK(last.tokens_T.empty() == !tokens);
  }
}

TEST_CASE("a job's microbatches are rounded up, and the padding is counted", "[padding]") {
  core::job::JobSpec job = uneven_job();
  job.batch.micro = 2, job.parallel.dp = 3;
  CHECK(job.microbatches() == 2);
  CHECK(job.padding_sequences() == 5);
  CHECK(job.tokens_per_step() == 7 * 16);
  job.batch.global = 12;
  CHECK(job.microbatches() == 2);
  CHECK(job.padding_sequences() == 0);
}

TEST_CASE("a global batch that does not divide trains as on one rank", "[padding][layouts]") {
  struct Case {
    std::int64_t micro, tp, pp, dp, zero;
    parallel::ScheduleKind schedule = parallel::ScheduleKind::one_f_one_b;
    std::int64_t virtual_stages = 1;
  };
  using parallel::ScheduleKind;
  const std::int64_t experts = GENERATE(0, 4);
  const core::job::JobSpec one = uneven_job(experts);
  const std::vector<double> expected = uneven_curve(one);
  std::vector<Case> cases{{2, 1, 1, 1, 1},
                          {1, 1, 1, 2, 0},
                          {1, 1, 1, 3, 2},
                          {2, 1, 1, 4, 3},
                          {1, 2, 2, 2, 1, ScheduleKind::zb_h1},
                          {2, 1, 2, 2, 3, ScheduleKind::interleaved, 2}};
  if (test::runs_full()) {
    cases.push_back({4, 1, 1, 2, 2});
    cases.push_back({1, 1, 2, 4, 1, ScheduleKind::gpipe});
    cases.push_back({3, 2, 1, 3, 3});
  }
  for (const Case& c : cases) {
    CAPTURE(c.micro, c.tp, c.pp, c.dp, c.zero, parallel::to_string(c.schedule), experts);
    core::job::JobSpec job = one;
    job.batch.micro = c.micro;
    job.parallel.tp = c.tp, job.parallel.pp = c.pp, job.parallel.dp = c.dp, job.parallel.zero = c.zero;
    job.parallel.schedule = c.schedule, job.parallel.virtual_stages = c.virtual_stages;
    const std::vector<double> curve = uneven_curve(job);
    REQUIRE(curve.size() == expected.size());
    for (std::size_t i = 0; i < curve.size(); ++i) CHECK(curve[i] == Approx(expected[i]).epsilon(2e-5));
  }
}
