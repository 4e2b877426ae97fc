// What a step's report says about the use of experts.

#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <vector>

#include "tests/core/layer_models.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

struct Reported {
  std::vector<std::vector<double>> load;
  std::vector<double> balance;
};

core::job::JobSpec load_job(std::int64_t count, std::int64_t per_token) {
  core::job::JobSpec job = core::spec::parse_job(
      "name: load\nseed: 5\ndevice: cpu\n"
      "model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16}\n"
      "batch: {global: 8, micro: 1}\nprecision: fp32\n"
      "optimizer: {name: adamw, lr: 5.0e-3, schedule: {kind: constant}}\n"
      "steps: 20\ndata: {format: synthetic}\n",
      "load.yaml");
  job.model.experts = {.count = count, .per_token = per_token};
  job.loss.expert_balance = 0.25;
  return job;
}

Reported run_reported(const core::job::JobSpec& job) {
  std::vector<Reported> made(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    Reported& mine = made[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 1; step <= 3; ++step) {
      // An evaluation between steps counts nothing.
      const auto samples = test::skewed_samples(job, step);
      if (step == 2) cpu.trainer().evaluate(*test::batches(cpu.trainer(), samples));
      const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
      mine.load.push_back(report.expert_load);
      mine.balance.push_back(report.expert_balance.value_or(-1));
    }
    test::require_as_planned(cpu);
  });
  for (const Reported& of_rank : made) {
    CHECK(of_rank.load == made[0].load);
    CHECK(of_rank.balance == made[0].balance);
  }
  return made[0];
}

}  // namespace

TEST_CASE("the use of experts is reported by layer, the same on every layout", "[experts][layouts]") {
  using enum parallel::ScheduleKind;
  using enum core::job::RecomputeKind;
  const core::job::JobSpec one = load_job(4, 2);
  const Reported expected = run_reported(one);
  for (std::size_t step = 0; step < 3; ++step) {
    REQUIRE(expected.load[step].size() == 4);
    for (const double load : expected.load[step]) {
      // 128 tokens choose two of four experts each, so that one has at most twice the mean of 64.
      CHECK(load > 1);
      CHECK(load <= 2);
      CHECK(load * 64 == Approx(std::round(load * 64)));
    }
    // Four layers, each of which adds at least 0.25 for an even use, whose tokens' mean decides.
    CHECK(expected.balance[step] == Approx(1).epsilon(0.2));
  }
  struct Case {
    std::int64_t tp, cp, pp, dp, ep, zero;
    parallel::ScheduleKind schedule = one_f_one_b;
    std::int64_t virtual_stages = 1;
    core::job::RecomputeOptions recompute = {};
    std::int64_t etp = 0;
  };
  for (const Case& c :
       {Case{2, 1, 1, 2, 1, 1}, Case{1, 2, 1, 2, 2, 2}, Case{1, 1, 2, 2, 2, 1, zb_h1},
        Case{2, 1, 2, 1, 1, 0, interleaved, 2, {selective}}, Case{1, 1, 1, 4, 4, 3, one_f_one_b, 1, {full}},
        Case{2, 1, 1, 2, 4, 1, one_f_one_b, 1, {}, 1}}) {
    CAPTURE(c.tp, c.cp, c.pp, c.dp, c.ep, c.zero, c.etp);
    core::job::JobSpec job = one;
    job.parallel.tp = c.tp, job.parallel.cp = c.cp, job.parallel.pp = c.pp, job.parallel.dp = c.dp;
    job.parallel.ep = c.ep, job.parallel.zero = c.zero, job.parallel.schedule = c.schedule;
    job.parallel.virtual_stages = c.virtual_stages, job.recompute = c.recompute;
    job.parallel.etp = c.etp, job.parallel.sequence_parallel = c.etp == 1;
    const Reported made = run_reported(job);
    CHECK(made.load[0] == expected.load[0]);  // later a rounding error may change a choice
    for (std::size_t step = 0; step < 3; ++step)
      CHECK(made.balance[step] == Approx(expected.balance[step]).epsilon(1e-4));
  }
}

TEST_CASE("experts that every token uses have an even load, and a balance loss of the layers' factors",
          "[experts]") {
  const Reported made = run_reported(load_job(3, 3));
  for (const std::vector<double>& load : made.load) CHECK(load == std::vector<double>(4, 1.0));
  for (const double balance : made.balance) CHECK(balance == Approx(4 * 0.25).epsilon(1e-6));
  core::job::JobSpec without = load_job(3, 3);
  without.loss.expert_balance = 0;
  CHECK(run_reported(without).balance == std::vector<double>(3, -1.0));
  without.model.experts = {};
  for (const std::vector<double>& load : run_reported(without).load) CHECK(load.empty());
}
