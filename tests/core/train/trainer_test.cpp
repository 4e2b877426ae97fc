#include <catch2/catch.hpp>
#include <limits>

#include "tests/core/train_support.h"

using namespace trainerd;

TEST_CASE("the same seed gives the same losses bit for bit", "[trainer]") {
  const core::job::JobSpec job = test::small_job(GENERATE("fp32", "bf16"));
  std::vector<double> first;
  for (int run = 0; run < 2; ++run) {
    core::rank::DeviceRank rank(job, test::cpu_topology(2));
    rank.trainer().initialise();
    const std::vector<double> losses = test::losses(rank.trainer(), job, 1, 5);
    if (run == 0) first = losses;
    else CHECK(losses == first);
  }
  CHECK(first.back() < first.front());
}

TEST_CASE("the split of a batch into microbatches does not change the loss curve", "[trainer]") {
  core::job::JobSpec job = test::small_job();
  std::vector<double> whole;
  for (const std::int64_t micro : {4, 2, 1}) {
    job.batch.micro = micro;
    core::rank::DeviceRank rank(job, test::cpu_topology(1));
    rank.trainer().initialise();
    const std::vector<double> losses = test::losses(rank.trainer(), job, 1, 6);
    if (micro == 4) whole = losses;
    for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(whole[i]).epsilon(2e-6));
  }
}

TEST_CASE("evaluation gives the loss of a step and changes nothing", "[trainer]") {
  const core::job::JobSpec job = [] {
    core::job::JobSpec j = test::small_job();
    j.evaluate = {.every = 1, .batches = 1};
    return j;
  }();
  core::rank::DeviceRank rank(job, test::cpu_topology(2));
  rank.trainer().initialise();
  const auto samples = test::skewed_samples(job, 1);
  const double evaluated = rank.trainer().evaluate(*test::batches(rank.trainer(), samples)).loss;
  CHECK(rank.trainer().evaluate(*test::batches(rank.trainer(), samples)).loss == evaluated);
  CHECK(rank.trainer().step(1, *test::batches(rank.trainer(), samples), {}).loss ==
        Approx(evaluated).epsilon(1e-7));
}

TEST_CASE("a gradient that is not finite is named and nothing is updated", "[trainer]") {
  const core::job::JobSpec job = test::small_job(GENERATE("fp32", "bf16"));
  core::rank::DeviceRank rank(job, test::cpu_topology(2));
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  test::losses(trainer, job, 1, 2);
  core::model::ParamStore& params = trainer.params();
  // Poison the last norm: every gradient before it in the model is then NaN, and the loss too.
  core::model::ParamId poisoned = core::model::kNoParam;
  for (core::model::ParamId id = 0; id < params.count(); ++id)
    if (params.info(id).name == "final_norm.weight") poisoned = id;
  REQUIRE(poisoned != core::model::kNoParam);
  params.master(poisoned).as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  trainer.publish();
  CHECK(params.view(0).state_parts()[0].params.defined() == (job.precision.name == "bf16"));
  // A skipped step must keep this state, bit for bit.
  const std::vector<std::byte> before = test::state_of(trainer);
  const core::train::StepReport report = test::step_on(trainer, job, 3);
  CHECK(report.skipped);
  CHECK_FALSE(report.nonfinite.empty());
  CHECK(test::state_of(trainer) == before);
}

TEST_CASE("the votes of a step come back with its report", "[trainer]") {
  const core::job::JobSpec job = test::small_job();
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  const core::train::StepReport none = test::step_on(rank.trainer(), job, 1, {});
  CHECK_FALSE(none.vote.stop);
  CHECK_FALSE(none.vote.checkpoint);
  const core::train::StepReport both =
      test::step_on(rank.trainer(), job, 2, {.stop = true, .checkpoint = true});
  CHECK(both.vote.stop);
  CHECK(both.vote.checkpoint);
}

TEST_CASE("the parts of a step's ledger are complete and not negative", "[trainer]") {
  const core::job::JobSpec job = test::small_job();
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  const core::train::StepReport report = test::step_on(rank.trainer(), job, 1, {});
  for (const base::LedgerPartInfo& part : base::kLedgerParts) {
    CAPTURE(part.name);
    CHECK(report.time[part.part] >= 0);
    if (*part.axis != 0) CHECK(report.time[part.part] == 0);  // a single rank waits for no other
  }
  CHECK(report.time[base::LedgerPart::compute] > 0);
  CHECK(report.time[base::LedgerPart::optimizer] > 0);
}

TEST_CASE("a step reported after the launch of the next one reports the same as at once", "[trainer]") {
  const core::job::JobSpec job = test::small_job();
  std::vector<core::train::StepReport> prompt, late;
  for (std::vector<core::train::StepReport>* reports : {&prompt, &late}) {
    core::rank::DeviceRank rank(job, test::cpu_topology(1));
    core::train::Trainer& trainer = rank.trainer();
    trainer.initialise();
    for (std::int64_t step = 1; step <= 5; ++step) {
      const auto samples = test::skewed_samples(job, step);
      trainer.launch(step, *test::batches(trainer, samples), {.stop = step == 3, .checkpoint = step == 4});
      if (reports == &prompt || step > 1) reports->push_back(trainer.report());
    }
    if (reports == &late) reports->push_back(trainer.report());
    CHECK_THROWS_AS(trainer.report(), std::logic_error);  // no step is in flight
  }
  REQUIRE(late.size() == prompt.size());
  for (std::size_t i = 0; i < late.size(); ++i) {
    CHECK(late[i].loss == prompt[i].loss);
    CHECK(late[i].grad_norm == prompt[i].grad_norm);
    CHECK(late[i].learning_rate == prompt[i].learning_rate);
    CHECK(late[i].vote.stop == (i == 2));
    CHECK(late[i].vote.checkpoint == (i == 3));
    CHECK(late[i].time[base::LedgerPart::compute] > 0);
  }
}

TEST_CASE("no more steps are launched than can be reported, and none during an evaluation", "[trainer]") {
  const core::job::JobSpec job = test::small_job();
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  const auto samples = test::skewed_samples(job, 1);
  trainer.launch(1, *test::batches(trainer, samples), {});
  CHECK_THROWS_AS(trainer.evaluate(*test::batches(trainer, samples)), std::logic_error);
  trainer.launch(2, *test::batches(trainer, samples), {});
  CHECK_THROWS_AS(trainer.launch(3, *test::batches(trainer, samples), {}), std::logic_error);
}
