// Steps are judged between gradients and update: computed again and compared, skipped, or the run ends.

#include "core/run/worker/step_judge.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>

#include "core/run/agent/difference_watch.h"
#include "core/run/supervise/spike_watch.h"
#include "core/run/worker/judge_ties.h"
#include "kernels/base/error.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using core::run::DifferenceWatch;
using core::run::JudgeTies;
using core::run::ResultsDiffer;
using core::run::SpikeActed;
using core::run::SpikeWatch;
using core::run::StepJudge;
using core::train::StepOutcome;
using core::train::StepVerdict;

namespace {

using Ranks = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

/// Thrown in place of the agent ending the rank.
struct Ended : std::runtime_error {
  Ended() : std::runtime_error("the agent ends the rank") {}
};

struct Dead : std::runtime_error {
  Dead() : std::runtime_error("the communication of the ranks has ended") {}
};

StepOutcome outcome(std::int64_t step, double loss, double norm = 1) {
  return {.step = step, .loss = loss, .loss_weight = 8, .grad_norm = norm, .own_loss = 8 * loss};
}

StepOutcome broken(std::int64_t step) {
  StepOutcome o = outcome(step, std::nan(""));
  o.finite = false;
  o.nonfinite = "loss";
  return o;
}

/// A judge of a single rank. `hash` is the hash of its gradients.
struct Alone {
  explicit Alone(core::job::SuperviseOptions options, const core::run::SpikeHistory& history = {})
      : judge(options, 0, 1, history,
              {.hash = [this] { return std::vector<std::uint64_t>{hash}; },
               .names = {"w"},
               .most = [](const std::vector<float>& own) { return own; },
               .report_differing = [this](const ResultsDiffer& m) { differ.push_back(m); },
               .report_action = [this](const SpikeActed& m) { acts.push_back(m); },
               .require_alive =
                   [this] {
                     if (--alive_calls < 0) throw Dead{};
                   },
               .await_end = [] { throw Ended{}; }}) {}
  int alive_calls = 1 << 20;  ///< calls that find the ranks' communication alive
  std::uint64_t hash = 1;
  std::vector<ResultsDiffer> differ;
  std::vector<SpikeActed> acts;
  StepJudge judge;
};

core::job::SuperviseOptions policy(Words words, double score = 0) {
  core::job::SuperviseOptions options;
  options.spikes = {.score = score, .window = 32, .policy = std::move(words), .retries = 2, .skips = 2};
  return options;
}

}  // namespace

TEST_CASE("a spike is far above the latest values, by the robust z-score", "[judge]") {
  SpikeWatch watch({.score = 10, .window = 20, .policy = {"skip"}}, 0);
  CHECK(watch.judge(outcome(1, 1e9)).empty());  // no earlier steps to compare with
  // Losses 2.00, 2.01, ... 2.19: the median is 2.095, the absolute deviations have the median 0.05.
  for (int i = 0; i < 20; ++i) watch.add(outcome(i, 2 + 0.01 * i, 1));
  const double spread = 1.4826 * 0.05;
  CHECK(watch.judge(outcome(21, 2.095 + 9.9 * spread)).empty());
  CHECK(watch.judge(outcome(21, 2.095 + 20 * spread)) ==
        "the loss is 3.578, 20 robust standard deviations above the median 2.095 of the latest 20 steps");
  CHECK(watch.judge(outcome(21, -100)).empty());  // a low loss is no spike
  // A constant norm has a spread of 1% of its value.
  CHECK(watch.judge(outcome(21, 2.1, 1.09)).empty());
  CHECK(watch.judge(outcome(21, 2.1, 1.2)) ==
        "the gradient norm is 1.2, 20 robust standard deviations above the median 1 of the latest 20 steps");
  // The window moves: 50 is now usual.
  for (int i = 0; i < 20; ++i) watch.add(outcome(i, 50, 1));
  CHECK(watch.judge(outcome(50, 50)).empty());
}

TEST_CASE("a value that is not finite is reported by its rank, and needs no score", "[judge]") {
  StepOutcome o = broken(3);
  CHECK(SpikeWatch({}, 0).judge(o) == "the loss is not finite");
  o.nonfinite_rank = 2, o.nonfinite = "w";
  CHECK(SpikeWatch({}, 0).judge(o) == "a gradient of rank 2 is not finite");
  CHECK(SpikeWatch({}, 2).judge(o) == "the gradient of w is not finite");
  CHECK(SpikeWatch({}, 2).judge(outcome(3, 1e300)).empty());
}

TEST_CASE("an overflow of loss scaling is no spike, and later steps are not compared with it", "[judge]") {
  Alone r(policy({"skip"}, 10));
  for (int i = 1; i <= 20; ++i) CHECK(r.judge.judge(outcome(i, 2)) == StepVerdict::update);
  StepOutcome o = outcome(21, 2, HUGE_VAL);
  o.overflow = true, o.nonfinite = "w";
  CHECK(r.judge.judge(o) == StepVerdict::update);
  CHECK(r.acts.empty());
  CHECK(r.judge.judge(outcome(22, 2, 100)) == StepVerdict::skip);
  CHECK(r.acts.size() == 1);
}

TEST_CASE("a verified step is computed twice, and a third time if the two differ", "[judge]") {
  core::job::SuperviseOptions options;
  options.verify_every = 2;
  Alone r(options);
  CHECK_FALSE(r.judge.judges(1));
  REQUIRE(r.judge.judges(2));
  CHECK(r.judge.judge(outcome(2, 1)) == StepVerdict::again);
  CHECK(r.judge.judge(outcome(2, 1)) == StepVerdict::update);
  CHECK(r.differ.empty());
  CHECK(r.judge.judge(outcome(4, 1)) == StepVerdict::again);
  r.hash = 7;
  CHECK(r.judge.judge(outcome(4, 1)) == StepVerdict::again);
  r.hash = 1;
  CHECK(r.judge.judge(outcome(4, 1)) == StepVerdict::update);
  REQUIRE(r.differ.size() == 1);
  CHECK(r.differ[0].found == ResultsDiffer::Found::one_of_three);
  CHECK(r.differ[0].tensors == Words{"w"});
  // A difference in the loss only counts too, even in its last bit.
  CHECK(r.judge.judge(outcome(6, 1)) == StepVerdict::again);
  CHECK(r.judge.judge(outcome(6, std::nextafter(1.0, 2.0))) == StepVerdict::again);
  CHECK(r.judge.judge(outcome(6, 1)) == StepVerdict::update);
  REQUIRE(r.differ.size() == 2);
  CHECK(r.differ[1].tensors == Words{"loss"});
  CHECK(r.judge.judge(outcome(8, 1)) == StepVerdict::again);
  r.hash = 2;
  CHECK(r.judge.judge(outcome(8, 1)) == StepVerdict::again);
  r.hash = 3;
  CHECK_THROWS_AS(r.judge.judge(outcome(8, 1)), Ended);
  CHECK(r.differ.back().found == ResultsDiffer::Found::no_two_alike);
}

TEST_CASE("a spike that repeats identically gets the next action of the policy, up to its budget",
          "[judge]") {
  Alone r(policy({"retry", "skip"}));
  CHECK(r.judge.judge(outcome(1, 1)) == StepVerdict::update);
  for (const std::int64_t step : {2, 3}) {
    CHECK(r.judge.judge(broken(step)) == StepVerdict::again);
    CHECK(r.judge.judge(broken(step)) == StepVerdict::skip);
  }
  CHECK(r.differ.empty());
  REQUIRE(r.acts.size() == 4);
  CHECK(r.acts[0].message == "spike in step 2: the loss is not finite; it is computed again (retry 1 of 2)");
  CHECK(r.acts[1].message ==
        "spike in step 2, computed again with the same result: the loss is not finite; nothing is updated "
        "(skip 1 of 2)");
  CHECK((r.acts[3].used == 2 && r.acts[3].action == core::job::SpikeAction::skip));
  CHECK_THROWS_WITH(r.judge.judge(broken(4)),
                    Catch::Contains("step 4: the loss is not finite; the step updated nothing, and "
                                    "supervise.spikes has no action left: retry: 2 of 2 used; skip: 2 of 2 "
                                    "used"));
}

TEST_CASE("a spike that does not repeat in the same step is blamed on the hardware", "[judge]") {
  Alone r(policy({"retry", "skip"}));
  CHECK(r.judge.judge(broken(2)) == StepVerdict::again);
  CHECK(r.judge.judge(outcome(2, 1)) == StepVerdict::update);
  REQUIRE(r.differ.size() == 1);
  CHECK(r.differ[0].found == ResultsDiffer::Found::after_spike);
  CHECK(r.acts.size() == 1);
}

TEST_CASE("budgets of the policy that an earlier attempt used stay used", "[judge]") {
  Alone r(policy({"skip", "rollback"}), {.used = {0, 2, 1}});
  CHECK_THROWS_AS(r.judge.judge(broken(2)), Ended);
  REQUIRE(r.acts.size() == 1);
  CHECK(r.acts[0].message == "spike in step 2: the loss is not finite; the run goes back (rollback 2 of 2)");
  CHECK_THROWS_WITH(r.judge.judge(broken(3)), Catch::Contains("skip: 2 of 2 used; rollback: 2 of 2 used"));
}

TEST_CASE("values read after the communication ended are not reported", "[judge]") {
  // Communication may end before the judge reads the outcome, the hash, or the ranks' results.
  for (int alive = 0; alive < 5; ++alive) {
    CAPTURE(alive);
    core::job::SuperviseOptions options = policy({"skip"});
    options.verify_every = 1;
    Alone r(options);
    r.alive_calls = alive;
    const auto compute = [&] {
      r.judge.judge(outcome(1, 1));
      r.judge.judge(broken(1));
      r.judge.judge(broken(1));
    };
    CHECK_THROWS_AS(compute(), Dead);
    CHECK((r.acts.empty() && r.differ.empty()));
  }
}

TEST_CASE("a step that was verified is not computed again for its spike", "[judge]") {
  core::job::SuperviseOptions options = policy({"retry"});
  options.verify_every = 1;
  Alone r(options);
  CHECK(r.judge.judge(broken(1)) == StepVerdict::again);
  CHECK_THROWS_WITH(r.judge.judge(broken(1)), Catch::Contains("retry: computed again with the same result"));
}

TEST_CASE("if one rank is wrong in one computation and another in the next, both are named", "[judge]") {
  // Two ranks with given results. Each judge sees the results of both.
  const std::vector<std::vector<std::uint64_t>> hashes{{9, 1, 1}, {1, 9, 1}};
  std::vector<ResultsDiffer> reported;
  core::job::SuperviseOptions options;
  options.verify_every = 1;
  const auto level = [&](std::size_t rank, std::size_t a, std::size_t b) {
    return hashes[rank][a] != hashes[rank][b] ? 2.0f : 0.0f;
  };
  // The second computation against the first, then the third against both.
  const std::vector<std::pair<std::size_t, std::size_t>> pairs{{0, 1}, {0, 1}, {0, 2}, {1, 2}};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::size_t computation = 0, compared = 0;
    StepJudge judge(options, static_cast<std::int64_t>(rank), 2, {},
                    {.hash = [&] { return std::vector{hashes[rank][computation++]}; },
                     .names = {"w"},
                     .most =
                         [&](const std::vector<float>& own) {
                           const auto [a, b] = pairs.at(compared++);
                           REQUIRE(own[rank] == level(rank, a, b));
                           return std::vector{level(0, a, b), level(1, a, b)};
                         },
                     .report_differing = [&](const ResultsDiffer& m) { reported.push_back(m); },
                     .report_action = [](const SpikeActed&) {},
                     .require_alive = [] {},
                     .await_end = [] { throw Ended{}; }});
    CHECK(judge.judge(outcome(1, 1)) == StepVerdict::again);
    CHECK(judge.judge(outcome(1, 1)) == StepVerdict::again);
    CHECK_THROWS_AS(judge.judge(outcome(1, 1)), Ended);
  }
  REQUIRE(reported.size() == 2);
  CHECK(reported[0].ranks == Ranks{0, 1});
  CHECK(reported[0].tensors == Words{"w", "in its first computation"});
  CHECK(reported[1].tensors == Words{"w", "in its second computation"});
  DifferenceWatch watch;
  CHECK_FALSE(watch.add(reported[0]));
  const auto verdict = watch.add(reported[1]);
  REQUIRE(verdict);
  CHECK((verdict->fatal &&
         verdict->message ==
             "silent corruption in step 1: ranks 0, 1 computed three times, and no two of the "
             "computations are alike on all ranks"));
}

TEST_CASE("ranks that only got an error from another do not end the run", "[judge]") {
  DifferenceWatch watch;
  const auto reported = [&](std::int64_t step, std::vector<Words> tensors) {
    std::optional<core::run::DifferenceVerdict> verdict;
    for (std::int64_t rank = 0; rank < 2; ++rank)
      verdict = watch.add({.rank = rank,
                           .step = step,
                           .tensors = tensors[static_cast<std::size_t>(rank)],
                           .ranks = {0, 1},
                           .found = ResultsDiffer::Found::one_of_three});
    REQUIRE(verdict);
    return verdict->fatal;
  };
  // Both ranks differ: the error came before the sum over ranks, and either rank may be wrong.
  for (const std::int64_t step : {1, 2, 3}) CHECK_FALSE(reported(step, {{"w"}, {"w"}}));
  // A rank's part of the loss is its own: a difference in it identifies the rank.
  CHECK_FALSE(reported(4, {{"w"}, {"loss", "w"}}));
  CHECK_FALSE(reported(5, {{"loss", "w"}, {"w"}}));
  CHECK(reported(6, {{"w"}, {"loss", "w"}}));
}

TEST_CASE("ranks whose results differ are named together, and one ends the run at the second time",
          "[judge]") {
  DifferenceWatch watch;
  const auto reported = [](std::int64_t rank, std::int64_t step, Ranks ranks, ResultsDiffer::Found found) {
    return ResultsDiffer{.rank = rank, .step = step, .tensors = {"a", "b"}, .ranks = ranks, .found = found};
  };
  CHECK_FALSE(watch.add(reported(3, 5, {1, 3}, ResultsDiffer::Found::one_of_three)));
  const auto first = watch.add(reported(1, 5, {1, 3}, ResultsDiffer::Found::one_of_three));
  REQUIRE(first);
  CHECK_FALSE(first->fatal);
  CHECK(first->ranks == Ranks{1, 3});
  CHECK(first->message ==
        "silent corruption in step 5: ranks 1, 3 computed other results the first time than the second; the "
        "third time agrees with one of them, and the step goes on with that");
  CHECK(first->details == Words{"rank 1: a, b", "rank 3: a, b"});
  CHECK_FALSE(watch.add(reported(3, 7, {3}, ResultsDiffer::Found::one_of_three))->fatal);
  const auto other = watch.add(reported(2, 6, {2}, ResultsDiffer::Found::after_spike));
  REQUIRE(other);
  CHECK_FALSE(other->fatal);
  CHECK(other->message ==
        "silent corruption in step 6: rank 2 computed other results when the step was computed again after a "
        "spike: its hardware is the cause, not the data");
  const auto again = watch.add(reported(3, 9, {3}, ResultsDiffer::Found::one_of_three));
  REQUIRE(again);
  CHECK(again->fatal);
  CHECK_THAT(again->message, Catch::EndsWith("; rank 3 differed in step 7 too, so the run ends"));
  const auto none = watch.add(reported(0, 9, {0}, ResultsDiffer::Found::no_two_alike));
  REQUIRE(none);
  CHECK((none->fatal && none->message ==
                            "silent corruption in step 9: rank 0 computed three times, and no two results "
                            "are alike"));
}

namespace trainerd::test {
namespace {

constexpr std::int64_t kSteps = 6, kBad = 4;

core::job::JobSpec judged_job(const Words& keys) {
  core::job::JobSpec job = small_job();
  for (const std::string& key : keys) {
    if (key == "bf16") job.precision = small_job("bf16").precision;
    if (key == "tp") job.parallel.tp = 2;
    if (key == "dp") job.parallel.dp = 2, job.batch.micro = 1;
    if (key == "pp") job.parallel.pp = 2;
    if (key.starts_with("zero")) job.parallel.zero = key[4] - '0';
    if (key == "dropout") job.model.dropout.residual = 0.1;
    if (key == "ema") job.optimizer.average.decay = 0.9;
  }
  return job;
}

/// Results of the ranks of a job.
struct Judged {
  std::map<std::int64_t, std::vector<std::byte>> states;  ///< by rank
  std::vector<double> losses;
  std::vector<ResultsDiffer> differ;
  std::vector<SpikeActed> acts;
  std::vector<std::int64_t> passed_over;  ///< steps
};

/// Trains with a fault: in computations `bad` of step kBad one element of rank 1's gradient becomes `value`.
Judged train(const core::job::JobSpec& job, const Ranks& bad = {}, float value = 3) {
  Judged all;
  std::mutex mutex;
  on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& device) {
    core::train::Trainer& trainer = device.trainer();
    std::optional<StepJudge> judge;
    if (job.supervise.judges_steps()) {
      judge.emplace(job.supervise, rank, static_cast<std::int64_t>(ranks_of(job)), core::run::SpikeHistory{},
                    core::run::judge_ties(trainer, {.send =
                                                        [&](const core::run::WorkerMessage& m) {
                                                          const std::lock_guard lock(mutex);
                                                          if (const auto* d = std::get_if<ResultsDiffer>(&m))
                                                            all.differ.push_back(*d);
                                                          if (const auto* a = std::get_if<SpikeActed>(&m))
                                                            all.acts.push_back(*a);
                                                        },
                                                    .await = [] { throw Ended{}; },
                                                    .require_alive = [] {},
                                                    .cursor = [] { return std::int64_t{0}; }}));
      trainer.judge_by(*judge);
    }
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const std::vector<std::int32_t> samples = skewed_samples(job, step);
      std::int64_t computation = 0;
      const auto flip = [&] {
        if (step == kBad && rank == 1 % static_cast<std::int64_t>(ranks_of(job)) &&
            std::count(bad.begin(), bad.end(), computation) > 0) {
          const core::model::ParamView& view = trainer.params().view(0);
          const core::model::StateRun& run = view.state_runs()[0];
          const kernels::Tensor x = view.state_parts()[run.part].grads.rows(run.begin + computation, 1);
          std::vector<std::byte> bytes(static_cast<std::size_t>(x.bytes()));
          const auto* from = reinterpret_cast<const std::byte*>(&value) + (4 - bytes.size());
          std::copy_n(from, bytes.size(), x.data);
        }
        ++computation;
      };
      trainer.launch(step, *batches(trainer, samples), {}, flip);
      const core::train::StepReport report = trainer.report();
      const std::lock_guard lock(mutex);
      if (rank == 0) all.losses.push_back(report.loss);
      if (rank == 0 && report.passed_over) all.passed_over.push_back(step);
    }
    const std::lock_guard lock(mutex);
    all.states[rank] = state_of(trainer);
    require_as_planned(device);
  });
  return all;
}

const std::vector<Words> kLayouts{{"dp", "zero0"},         {"dp", "zero1", "dropout"},
                                  {"dp", "zero2", "bf16"}, {"dp", "zero3", "bf16"},
                                  {"tp", "pp", "bf16"},    {"tp", "dp", "zero1", "ema"}};

std::string text_of(const Words& keys) {
  std::string text;
  for (const std::string& key : keys) text += key + " ";
  return text;
}

}  // namespace

TEST_CASE("a rank that judges shows that it waits for its device", "[judge]") {
  struct Look final : core::train::Judge {
    bool judges(std::int64_t) const override { return true; }
    StepVerdict judge(const StepOutcome&) override {
      seen.push_back(page.activity());
      return StepVerdict::update;
    }
    core::train::RankPage page;
    std::vector<core::train::Activity> seen;
  } look;
  core::job::JobSpec job = small_job();
  job.supervise.verify_every = 1;
  on_every_rank(job, [&](std::int64_t, core::rank::DeviceRank& device) {
    core::train::Trainer& trainer = device.trainer();
    trainer.show_on(look.page);
    trainer.judge_by(look);
    const std::vector<std::int32_t> samples = skewed_samples(job, 1);
    trainer.launch(1, *batches(trainer, samples), {}, {});
    CHECK(look.page.activity() == core::train::Activity::optimizer);
  });
  CHECK(look.seen == std::vector{core::train::Activity::report});
}

TEST_CASE("a verified step gives the same result as an unverified one, on every layout", "[judge][layouts]") {
  for (const Words& keys : kLayouts) {
    CAPTURE(text_of(keys));
    core::job::JobSpec job = judged_job(keys);
    const Judged plain = train(job);
    job.supervise.verify_every = 2;
    const Judged verified = train(job);
    CHECK(verified.differ.empty());
    CHECK(verified.losses == plain.losses);
    CHECK((verified.states == plain.states));
  }
}

TEST_CASE("a flipped gradient is found before the update and leaves no trace, on every layout",
          "[judge][layouts]") {
  for (const Words& keys : kLayouts) {
    CAPTURE(text_of(keys));
    core::job::JobSpec job = judged_job(keys);
    const Judged plain = train(job);
    job.supervise.verify_every = 1;
    for (const std::int64_t computation : {0, 1}) {
      const Judged flipped = train(job, {computation});
      CHECK(flipped.losses == plain.losses);
      CHECK((flipped.states == plain.states));
      REQUIRE(flipped.differ.size() == 1);
      CHECK((flipped.differ[0].rank == 1 && flipped.differ[0].step == kBad));
      CHECK(flipped.differ[0].ranks == Ranks{1});
      CHECK(flipped.differ[0].tensors.size() == 1);
    }
    CHECK_THROWS_WITH(train(job, {0, 1, 2}), Catch::Contains("the agent ends the rank"));
  }
}

TEST_CASE("a gradient that is not finite is computed again, or its step is skipped, as the policy says",
          "[judge][layouts]") {
  for (const Words& keys : std::vector<Words>{{"dp", "zero1"}, {"dp", "zero2", "bf16"}, {"tp", "pp"}}) {
    CAPTURE(text_of(keys));
    core::job::JobSpec job = judged_job(keys);
    const Judged plain = train(job);
    job.supervise.spikes.policy = {"retry", "skip"};
    const Judged retried = train(job, {0}, std::numeric_limits<float>::infinity());
    CHECK(retried.losses == plain.losses);
    CHECK((retried.states == plain.states));
    CHECK(retried.differ.size() == 1);
    CHECK(retried.acts.size() == 1);
    job.supervise.spikes.policy = {"skip"};
    const Judged skipped = train(job, {0}, std::numeric_limits<float>::infinity());
    CHECK(skipped.passed_over == Ranks{kBad});
    CHECK(skipped.acts.at(0).message ==
          "spike in step 4: a gradient of rank 1 is not finite; nothing is updated (skip 1 of 5)");
    // The next step sees the same parameters as the skipped one.
    CHECK(std::vector(skipped.losses.begin(), skipped.losses.begin() + kBad) ==
          std::vector(plain.losses.begin(), plain.losses.begin() + kBad));
    CHECK(std::isfinite(skipped.losses.back()));
    CHECK(skipped.losses[kBad] != plain.losses[kBad]);
  }
}

}  // namespace trainerd::test
