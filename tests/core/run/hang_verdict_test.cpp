// Hang verdicts from the pages and rings of ranks: the rank that blocks the others, and the message.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "core/run/supervise/hang_inquiry.h"
#include "core/run/supervise/still_clock.h"
#include "tests/core/run/hang_sights.h"

using namespace trainerd;
using namespace trainerd::test::hang;
using core::run::StillTime;

TEST_CASE("the rank that never entered a collective is named, with the ranks that wait for it", "[hang]") {
  // tp 2, pp 2, dp 2: ranks 0 and 1 are a tensor-parallel group.
  std::vector<RankSight> sights;
  for (std::int64_t i = 0; i < 8; ++i)
    sights.push_back(waiting(i, Group::world, 3, "all_reduce", "norm_and_loss", i / 4));
  sights[5] = sight_of(5, 1);
  sights[5].still.stopped = 6;
  const auto found = verdict(sights, layout_of(2, 2, 2));
  REQUIRE(found);
  CHECK(found->message ==
        "rank 5 (node 1, tp 1, pp 1, dp 0) never entered all_reduce #3 'norm_and_loss' of group world; last "
        "seen in forward of microbatch 5 of step 12, 6.0 s ago; its process is stopped by a signal; ranks 0, "
        "1, 2, 3, 4, 6, 7 wait for it");
  CHECK(found->kind == "stopped");
  CHECK(found->restart);
  CHECK(found->ranks == Ranks{5});
}

TEST_CASE("a rank that waits itself is no cause; the end of the chain of waits is", "[hang]") {
  // dp groups: 0 and 2, 1 and 3. Rank 0 waits for 1, which waits for 3, which sleeps.
  std::vector<RankSight> sights{waiting(0, Group::tp, 8, "all_reduce", "row_linear"),
                                waiting(1, Group::dp, 3, "reduce_scatter", "grad bucket 7"),
                                waiting(2, Group::dp, 3, "reduce_scatter", "grad bucket 7"),
                                asleep(sight_of(3))};
  sights[1].operations.push_back(operation("all_reduce", "tp", 7, "row_linear", FlightState::done));
  const auto found = verdict(sights, layout_of(2, 1, 2));
  REQUIRE(found);
  CHECK(
      found->message ==
      "rank 3 (tp 1, dp 1) never entered reduce_scatter #3 'grad bucket 7' of group dp; last seen in forward "
      "of microbatch 5 of step 12, 6.0 s ago; its process sleeps, for 6.0 s; rank 1 waits for it");
  CHECK(found->kind == "asleep");
}

TEST_CASE("a computing rank is judged by its runnable time and its CPU time", "[hang]") {
  std::vector<RankSight> sights{waiting(0, Group::tp, 8, "all_reduce", "row_linear"), sight_of(1)};
  StillTime& still = sights[1].still;
  // 30 s on a tenth of a core are less than the limit: three steps of 0.5 s on two threads.
  sights[1].beat_seconds = 30;
  still.running = 30, still.computing = 2.9;
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 1)));
  // More CPU time than any step takes, but a shorter time than the minimum.
  still.running = 4.9, still.computing = 9;
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 1)));
  still.running = 5.1, still.computing = 3.1;
  const auto found = verdict(sights, layout_of(2, 1, 1));
  REQUIRE(found);
  CHECK(
      found->message ==
      "rank 1 (tp 1) never entered all_reduce #8 'row_linear' of group tp; last seen in forward of "
      "microbatch "
      "5 of step 12, 30.0 s ago; its process computes without progress, for 3.1 s of CPU time; rank 0 waits "
      "for it");
  CHECK((found->kind == "spinning" && found->own));
  CHECK(found->deadline_seconds == 5);
  // If a step takes 4 s on two threads, the same times prove nothing.
  sights[1].step_seconds = 4;
  still.running = 30, still.computing = 23;
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 1)));
  still.computing = 25;
  CHECK(verdict(sights, layout_of(2, 1, 1))->deadline_seconds == 24);
  // Steps of milliseconds: the limit is a fifth of the minimum, in case the process gets a fifth of a core.
  sights[1].step_seconds = sights[1].longest_seconds = 0.01;
  still = {.running = 60, .computing = 0.9};
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 1)));
  still = {.running = 5.1, .computing = 1.02};
  CHECK(verdict(sights, layout_of(2, 1, 1)));
}

TEST_CASE("a first step that computes is held against earlier ones, the plan or the device's peak",
          "[hang]") {
  RankSight first = sight_of(0);
  first.steps = 0, first.step_seconds = first.longest_seconds = 0;
  const auto spins = [&](const HangLimits& limits, double seconds) {
    first.still = {.running = seconds, .computing = 2 * seconds};
    return limits.cause(first) == core::run::HangCause::spinning;
  };
  // No estimate of a step's time: the ranks are not ready.
  CHECK_FALSE(spins(limits(), 1e6));
  HangLimits known = limits();
  known.peak_step_seconds = 0.01;
  CHECK_FALSE(spins(known, 59));
  CHECK(spins(known, 61));
  known.peak_step_seconds = 10;  // 20 times this, times the factor: 10 minutes
  CHECK_FALSE(spins(known, 599));
  CHECK(spins(known, 601));
  known.planned_step_seconds = 10;  // four times this, times the factor
  CHECK_FALSE(spins(known, 119));
  CHECK(spins(known, 121));
  known.planned_step_seconds.reset();
  first.step_seconds = 10;  // measured in the attempt before
  CHECK_FALSE(spins(known, 119));
  CHECK(spins(known, 121));
}

TEST_CASE("a rank that spins outside of steps is judged by the CPU time of all its threads", "[hang]") {
  const auto spins = [](Activity activity, double running, double computing, double longest = 0) {
    RankSight sight = sight_of(0);
    sight.activity = activity, sight.longest_seconds = longest;
    sight.still = {.running = running, .computing = computing};
    return limits().cause(sight) == core::run::HangCause::spinning;
  };
  for (const Activity activity :
       {Activity::evaluation, Activity::snapshot, Activity::between, Activity::data_wait}) {
    CHECK_FALSE(spins(activity, 130, 119));
    CHECK_FALSE(spins(activity, 59, 121));
    CHECK(spins(activity, 61, 121));
    CHECK_FALSE(spins(activity, 179, 359, 60));
    CHECK(spins(activity, 181, 361, 60));
  }
  for (const Activity activity : {Activity::none, Activity::load}) {
    CHECK_FALSE(spins(activity, 700, 599));
    CHECK(spins(activity, 301, 601));
  }
  for (const Activity activity : {Activity::agent_wait, Activity::done})
    CHECK_FALSE(spins(activity, 1e6, 1e6));
}

TEST_CASE("a starved rank is not accused, and a spinning one is accused within a look of its deadline",
          "[hang]") {
  // Steps take 40 to 400 ms of CPU time without a beat. The rank's share of a core changes from slice to
  // slice.
  std::mt19937_64 random(7);
  const auto draw = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  HangLimits limits{.factor = 3, .minimum_seconds = 1, .threads = 1};
  for (int trial = 0; trial < 4000; ++trial) {
    const bool spins = trial % 2 == 0;
    const double work = draw(0.04, 0.4);
    const double mean_share = spins ? draw(0.25, 1) : draw(0.05, 1);
    RankSight sight = sight_of(0);
    sight.step_seconds = work, sight.longest_seconds = 0;
    core::run::StillClock clock;
    double now = 100, cpu = 0, next_look = 100.1;
    clock.look(now, {.beats = 5, .beat_at = now}, [] { return core::run::ProcessLook{.state = 'R'}; });
    clock.look(now, {.beats = 6, .beat_at = now}, [] { return core::run::ProcessLook{.state = 'R'}; });
    std::optional<double> accused;
    const double end = spins ? 130 : 1e9;
    while (now < end && !accused && (spins || cpu < work)) {
      const double slice = draw(0.001, 0.02);
      now += slice;
      cpu += slice * std::clamp(mean_share * draw(0.8, 1.2), 0.05, 1.0);
      if (now < next_look) continue;
      next_look = now + draw(0.1, 0.15);                 // the agent waits for a core, too
      const double ticks = std::floor(100 * cpu) / 100;  // CPU time as the kernel reports it, in 1/100 s
      clock.look(now, {.beats = 6, .beat_at = 100}, [&] {
        return core::run::ProcessLook{.state = 'R', .cpu_seconds = ticks, .runnable = true};
      });
      sight.still = clock.time();
      if (limits.cause(sight)) accused = now - 100;
    }
    CAPTURE(trial, work, mean_share, now, cpu);
    CHECK(accused.has_value() == spins);
    // On a share of a core the CPU time of three steps may take longer than the minimum.
    if (spins) CHECK(*accused < std::max(1.0, 3 * work / (0.8 * mean_share)) + 0.5);
  }
}

TEST_CASE("a single rank without progress is named", "[hang]") {
  RankSight alone = sight_of(0);
  alone.still.stopped = 5.1;
  const auto found = verdict({alone}, layout_of(1, 1, 1));
  REQUIRE(found);
  CHECK(
      found->message ==
      "rank 0 makes no progress; last seen in forward of microbatch 5 of step 12, 6.0 s ago; its process is "
      "stopped by a signal");
  alone.still.stopped = 4.9;
  CHECK_FALSE(verdict({alone}, layout_of(1, 1, 1)));
}

TEST_CASE("first steps, evaluations and loads have more time, and waits for the agent all of it", "[hang]") {
  const auto hung = [](Activity activity, double seconds, std::int64_t steps = 11) {
    RankSight sight = asleep(sight_of(0), seconds);
    sight.activity = activity, sight.steps = steps, sight.step_seconds = steps > 0 ? 0.5 : 0;
    return verdict({sight}, layout_of(1, 1, 1)).has_value();
  };
  CHECK(hung(Activity::forward, 5.1));
  CHECK_FALSE(hung(Activity::forward, 59, 0));
  CHECK(hung(Activity::forward, 61, 0));
  for (const Activity activity : {Activity::evaluation, Activity::snapshot, Activity::between}) {
    CHECK_FALSE(hung(activity, 59));
    CHECK(hung(activity, 61));
  }
  CHECK_FALSE(hung(Activity::load, 299));
  CHECK(hung(Activity::load, 301));
  for (const Activity activity : {Activity::none, Activity::agent_wait, Activity::done})
    CHECK_FALSE(hung(activity, 1e6));
  // With rates a first step may take four times the planned time, times the factor.
  HangLimits planned = limits();
  planned.planned_step_seconds = 10;
  RankSight first = asleep(sight_of(0), 119);
  first.steps = 0, first.step_seconds = 0;
  CHECK_FALSE(planned.cause(first));
  first.still.asleep = 121;
  CHECK(planned.cause(first) == core::run::HangCause::asleep);
}

TEST_CASE("the deadline follows the median step and the longest of the latest activities", "[hang]") {
  RankSight sight = asleep(sight_of(0), 29);
  sight.step_seconds = 10;
  CHECK_FALSE(verdict({sight}, layout_of(1, 1, 1)));
  sight.still.asleep = 31;
  CHECK(verdict({sight}, layout_of(1, 1, 1)));
  sight.longest_seconds = 20;
  CHECK_FALSE(verdict({sight}, layout_of(1, 1, 1)));
  HangLimits off = limits();
  off.factor = 0;
  sight.still.asleep = sight.still.stopped = 1e6;
  CHECK_FALSE(core::run::judge(std::vector{sight}, layout_of(1, 1, 1), {}, off));
}

TEST_CASE("a slow disk and late data are reported without a restart", "[hang]") {
  RankSight disk = sight_of(0);
  disk.still.disk = 61;
  auto found = verdict({disk}, layout_of(1, 1, 1));
  REQUIRE(found);
  CHECK((found->kind == "disk" && !found->restart));
  CHECK(found->message ==
        "rank 0 makes no progress; last seen in forward of microbatch 5 of step 12, 6.0 s ago; its process "
        "waits for a disk or a device, for 61.0 s");
  RankSight data = asleep(sight_of(1), 61);
  data.activity = Activity::data_wait;
  found = verdict({waiting(0, Group::tp, 8, "all_reduce", "row_linear"), data}, layout_of(2, 1, 1));
  REQUIRE(found);
  CHECK((found->kind == "data" && !found->restart));
  CHECK(
      found->message ==
      "rank 1 (tp 1) never entered all_reduce #8 'row_linear' of group tp; last seen in the wait for data of "
      "microbatch 5 of step 12, 6.0 s ago; no data comes, for 61.0 s; rank 0 waits for it");
}

TEST_CASE("a collective that all ranks entered and that does not end is blamed on the link or the node",
          "[hang]") {
  std::vector<RankSight> sights{waiting(0, Group::dp, 9, "all_reduce", "gradients", 0),
                                waiting(1, Group::dp, 9, "all_reduce", "gradients", 1)};
  auto found = verdict(sights, layout_of(1, 1, 2));
  REQUIRE(found);
  CHECK(found->kind == "link");
  CHECK(
      found->message ==
      "all_reduce #9 'gradients' of group dp does not advance, though ranks 0, 1 have all entered it, 6.0 s "
      "ago; the link between nodes 0, 1 is down or loses what is sent");
  CHECK((found->restart && found->ranks == Ranks{0, 1}));
  sights[1].node = 0;
  found = verdict(sights, layout_of(1, 1, 2));
  REQUIRE(found);
  CHECK(found->kind == "stuck");
  CHECK_THAT(found->message, Catch::EndsWith("6.0 s ago; they are all on one node"));
  // No verdict if one of them is computing or was not asked.
  sights[1].still.asleep = 0;
  CHECK_FALSE(verdict(sights, layout_of(1, 1, 2)));
  CHECK_FALSE(verdict({sights[0]}, layout_of(1, 1, 2)));
}

TEST_CASE("a rank that was stopped inside a collective is the cause, and not the link", "[hang]") {
  std::vector<RankSight> sights{waiting(0, Group::dp, 9, "all_reduce", "gradients", 0),
                                waiting(1, Group::dp, 9, "all_reduce", "gradients", 1)};
  sights[1].still = {.stopped = 6};
  const auto found = verdict(sights, layout_of(1, 1, 2));
  REQUIRE(found);
  CHECK(
      found->message ==
      "rank 1 (node 1, dp 1) makes no progress; last seen in forward of microbatch 5 of step 12, 6.0 s ago; "
      "its process is stopped by a signal");
}

TEST_CASE("a process that is stopped is waited for before one that sleeps is named", "[hang]") {
  // Rank 0 waits for rank 2, but its page does not show it.
  std::vector<RankSight> sights{asleep(sight_of(0)), waiting(1, Group::tp, 8, "all_reduce", "embedding"),
                                sight_of(2), waiting(3, Group::tp, 8, "all_reduce", "embedding")};
  sights[2].process_state = 'T', sights[2].still.stopped = 4.5;
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 2)));
  sights[2].still.stopped = 5.1;
  const auto found = verdict(sights, layout_of(2, 1, 2));
  REQUIRE(found);
  CHECK(found->kind == "stopped");
  CHECK(found->ranks == Ranks{2});
}

TEST_CASE("a rank that is about to enter a collective, or does not leave it, waits for nobody", "[hang]") {
  // Rank 1's page shows a wait, but its ring has no operation in progress.
  std::vector<RankSight> sights{waiting(0, Group::tp, 8, "all_reduce", "row_linear"),
                                waiting(1, Group::tp, 7, "all_reduce", "row_linear")};
  sights[1].operations[0].state = FlightState::done;
  auto found = verdict(sights, layout_of(2, 1, 1));
  REQUIRE(found);
  CHECK_THAT(found->message, Catch::StartsWith("rank 1 (tp 1) never entered all_reduce #8 'row_linear'") &&
                                 Catch::Contains("its process sleeps, for 6.0 s"));
  // The other rank has left operation 7.
  sights[0].operations.insert(sights[0].operations.begin(),
                              operation("all_reduce", "tp", 7, "row_linear", FlightState::done));
  sights[1].operations[0].state = FlightState::started;
  found = verdict(sights, layout_of(2, 1, 1));
  REQUIRE(found);
  CHECK((found->kind == "asleep" && found->ranks == Ranks{1}));
  // All ranks are in it, and one computes.
  sights[0] = waiting(0, Group::tp, 7, "all_reduce", "row_linear");
  sights[1].still = {.running = 6, .computing = 6};
  found = verdict(sights, layout_of(2, 1, 1));
  REQUIRE(found);
  CHECK((found->kind == "spinning" && found->ranks == Ranks{1}));
  CHECK(found->own);  // a deterministic failure: it would repeat in the same step
}

TEST_CASE("ranks of a group that called different operations are reported with both operations", "[hang]") {
  std::vector<RankSight> sights{waiting(0, Group::tp, 8, "all_reduce", "row_linear"),
                                waiting(1, Group::tp, 8, "all_gather", "column")};
  sights[1].operations[0].bytes = 48;
  auto found = verdict(sights, layout_of(2, 1, 1));
  REQUIRE(found);
  CHECK((found->kind == "mismatch" && found->own));
  CHECK(found->message ==
        "the ranks of group tp called different operations: rank 0 (tp 0) all_reduce #8 'row_linear' of 24 "
        "bytes fp32; rank 1 (tp 1) all_gather #8 'column' of 48 bytes fp32");
  // Only a different size, and only a different dtype.
  sights[1] = waiting(1, Group::tp, 8, "all_reduce", "row_linear");
  sights[1].operations[0].bytes = 48;
  CHECK(verdict(sights, layout_of(2, 1, 1))->kind == "mismatch");
  sights[1].operations[0].bytes = 24, sights[1].operations[0].dtype = "bf16";
  CHECK(verdict(sights, layout_of(2, 1, 1))->kind == "mismatch");
}

TEST_CASE("ranks that wait for each other are reported", "[hang]") {
  // tp group 0 and 1, 2 and 3; dp group 0 and 2, 1 and 3.
  std::vector<RankSight> sights{
      waiting(0, Group::tp, 8, "all_reduce", "row_linear"), waiting(1, Group::dp, 3, "all_gather", "params"),
      waiting(2, Group::dp, 3, "all_gather", "params"), waiting(3, Group::tp, 8, "all_reduce", "row_linear")};
  auto found = verdict(sights, layout_of(2, 1, 2));
  REQUIRE(found);
  CHECK(found->kind == "deadlock");
  CHECK(found->message == "ranks 0, 1, 2, 3 wait for each other");
  REQUIRE(found->details.size() == 4);
  CHECK(found->details[0] ==
        "rank 0 (tp 0, dp 0) waits for all_reduce #8 'row_linear' of group tp, in forward of microbatch 5 of "
        "step 12, for rank 1");
  // With two nodes their link may be the cause, too.
  sights[2].node = sights[3].node = 1;
  CHECK(verdict(sights, layout_of(2, 1, 2))->message ==
        "ranks 0, 1, 2, 3 wait for each other; or a link between their nodes loses what is sent");
  CHECK(found->own);
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 2))->own);
  // One rank has slept for too short a time.
  sights[2].still.asleep = 4;
  CHECK_FALSE(verdict(sights, layout_of(2, 1, 2)));
}

TEST_CASE("several ranks that stand still are all named", "[hang]") {
  std::vector<RankSight> sights{sight_of(0), sight_of(1), sight_of(2)};
  for (RankSight& sight : sights) sight.still.stopped = 6;
  const auto found = verdict(sights, layout_of(1, 1, 3));
  REQUIRE(found);
  CHECK_THAT(found->message, Catch::StartsWith("rank 0 (dp 0) makes no progress; ") &&
                                 Catch::EndsWith("; and 2 more of the kind"));
  CHECK(found->ranks == Ranks{0, 1, 2});
  CHECK(found->details.size() == 2);
}

TEST_CASE("a rank's activity is described in words", "[hang]") {
  RankSight sight = sight_of(0);
  const auto said = [&](Activity activity) {
    sight.activity = activity;
    return core::run::doing(sight);
  };
  CHECK(said(Activity::none) == "its start");
  CHECK(said(Activity::load) == "the load of its state");
  CHECK(said(Activity::between) == "the end of step 12");
  CHECK(said(Activity::data_wait) == "the wait for data of microbatch 5 of step 12");
  CHECK(said(Activity::backward) == "backward of microbatch 5 of step 12");
  CHECK(said(Activity::evaluation) == "the evaluation of microbatch 5 after step 12");
  CHECK(said(Activity::snapshot) == "the snapshot after step 12");
  CHECK(said(Activity::agent_wait) == "the wait for its agent after step 12");
  CHECK(said(Activity::meet) == "the wait for members of a group to come");
  CHECK(said(Activity::done) == "the end of its work");
  sight.microbatch = -1, sight.chunk = -1;
  CHECK(said(Activity::optimizer) == "the update of step 12");
  CHECK(said(Activity::reduce_grads) == "the reduction of gradients of step 12");
  CHECK(said(Activity::evaluation) == "the evaluation after step 12");
}

TEST_CASE("answers to an earlier question do not count", "[hang]") {
  core::run::HangInquiry inquiry(2);
  const auto first = inquiry.ask(10);
  REQUIRE(first);
  CHECK(inquiry.add(*first, sight_of(0), 10));
  CHECK_FALSE(inquiry.ask(10.9));
  CHECK((inquiry.recent(11.9) && !inquiry.recent(12.1)));
  const auto second = inquiry.ask(11);
  REQUIRE(second);
  CHECK(inquiry.sights().empty());
  CHECK_FALSE(inquiry.add(*first, sight_of(1), 11));
  CHECK(inquiry.add(*second, sight_of(1), 11));
  CHECK(inquiry.sights().size() == 1);
}

TEST_CASE("an answered question is repeated soon, for many ranks after twice the time", "[hang]") {
  const auto next = [](double answer_seconds) {
    core::run::HangInquiry inquiry(2);
    const std::int64_t asked = inquiry.ask(10).value();
    CHECK_FALSE(inquiry.complete());
    CHECK(inquiry.add(asked, sight_of(0), 10));
    CHECK(inquiry.add(asked, sight_of(1), 10 + answer_seconds));
    CHECK(inquiry.complete());
    double at = 10;
    while (!inquiry.ask(at)) at += 0.01;
    return at - 10;
  };
  CHECK(next(0.001) == Approx(0.05).margin(0.011));
  CHECK(next(0.2) == Approx(0.4).margin(0.011));
  CHECK(next(3) == Approx(1).margin(0.011));
}
