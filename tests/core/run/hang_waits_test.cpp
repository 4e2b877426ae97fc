// Waits that a rank's page or ring does not show: pipeline messages, its device, and operations that the ring
// has overwritten.

#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "core/run/worker/injector.h"
#include "kernels/base/clock.h"
#include "tests/core/run/hang_sights.h"

using namespace trainerd;
using namespace trainerd::test::hang;

TEST_CASE("a pipeline neighbour that sends no message is named", "[hang]") {
  // Rank 1 has chunk 1: its forward pass needs rank 0's output.
  RankSight second = waiting(1, Group::pp, 4, "exchange", "pipeline");
  second.chunk = 1;
  RankSight first = sight_of(0);
  first.still.stopped = 6;
  auto found = verdict({first, second}, layout_of(1, 2, 1));
  REQUIRE(found);
  CHECK(found->message ==
        "rank 0 (pp 0) makes no progress; last seen in forward of microbatch 5 of step 12, 6.0 s ago; its "
        "process is stopped by a signal; rank 1, next to it in the pipeline, waits for a message, in "
        "forward of chunk 1, of microbatch 5 of step 12");
  // In the backward pass rank 0 needs rank 1's gradient.
  RankSight back = waiting(0, Group::pp, 4, "exchange", "pipeline");
  back.activity = Activity::backward;
  RankSight slow = asleep(sight_of(1));
  slow.chunk = 1;
  found = verdict({back, slow}, layout_of(1, 2, 1));
  REQUIRE(found);
  CHECK_THAT(found->message,
             Catch::StartsWith("rank 1 (pp 1) makes no progress; ") &&
                 Catch::EndsWith("; rank 0, next to it in the pipeline, waits for a message, in "
                                 "backward of microbatch 5 of step 12"));
  // While rank 1 computes, rank 0 may wait for any time.
  slow.still = {.computing = 4};
  CHECK_FALSE(verdict({back, slow}, layout_of(1, 2, 1)));
}

TEST_CASE("a stage that awaits an exchange immediately is judged by both neighbours", "[hang]") {
  // Without overlap the pages still show the actions before the exchanges.
  const auto in_exchange = [](std::int64_t number) {
    RankSight sight = waiting(number, Group::pp, 4, "exchange", "pipeline");
    sight.chunk = static_cast<int>(number);
    return sight;
  };
  std::vector<RankSight> sights{in_exchange(0), in_exchange(1), sight_of(2)};
  sights[0].activity = Activity::backward;
  sights[2].chunk = 2;
  sights[2].still.computing = 2;  // computing, on a loaded machine
  CHECK_FALSE(verdict(sights, layout_of(1, 3, 1)));
  sights[2].still = {.asleep = 6}, sights[2].activity = Activity::data_wait;
  CHECK_FALSE(verdict(sights, layout_of(1, 3, 1)));
  sights[2].still = {.stopped = 6};
  auto found = verdict(sights, layout_of(1, 3, 1));
  REQUIRE(found);
  CHECK((found->kind == "stopped" && found->ranks == Ranks{2}));
  CHECK_THAT(found->message,
             Catch::EndsWith("; rank 1, next to it in the pipeline, waits for a message, in forward of "
                             "chunk 1, of microbatch 5 of step 12"));
  // Neighbours on both sides wait.
  std::vector<RankSight> around{in_exchange(0), sight_of(1), in_exchange(2)};
  around[1].still.stopped = 6;
  CHECK_THAT(verdict(around, layout_of(1, 3, 1))->message,
             Catch::EndsWith("; ranks 0, 2, next to it in the pipeline, wait for messages, rank 0 in forward "
                             "of microbatch 5 of step 12"));
  // All ranks wait.
  sights[2] = in_exchange(2);
  found = verdict(sights, layout_of(1, 3, 1));
  REQUIRE(found);
  CHECK(found->kind == "deadlock");
  CHECK(found->message == "ranks 0, 1, 2 wait for each other");
  REQUIRE(found->details.size() == 3);
  CHECK(
      found->details[1] ==
      "rank 1 (pp 1) waits for a message of rank 0 or 2, in forward of chunk 1, of microbatch 5 of step 12");
  // One rank was not asked.
  sights.pop_back();
  CHECK_FALSE(verdict(sights, layout_of(1, 3, 1)));
}

TEST_CASE("the last stage of several chunks a rank is next to the first", "[hang]") {
  parallel::ParallelOptions options;
  options.pp = 3, options.virtual_stages = 2;
  options.schedule = parallel::ScheduleKind::interleaved;
  parallel::Topology topology;
  topology.nodes = 1, topology.devices_per_node = 3;
  const parallel::Layout layout = parallel::resolve_layout(options, topology, {.layers = 12}, 9);
  RankSight first = waiting(0, Group::pp, 4, "exchange", "pipeline"), last = sight_of(2);
  last.still.stopped = 6;
  const auto found = verdict({first, sight_of(1), last}, layout);
  REQUIRE(found);
  const auto next_to_it = Catch::Contains("; rank 0, next to it in the pipeline, waits for a message");
  CHECK_THAT(found->message, next_to_it);
  // Those of zb-v turn at the last stage.
  options.schedule = parallel::ScheduleKind::zb_v;
  const auto turned =
      verdict({first, sight_of(1), last}, parallel::resolve_layout(options, topology, {.layers = 12}, 9));
  if (turned) CHECK_THAT(turned->message, !next_to_it);
}

TEST_CASE("a wait for a message counts even if its exchange is not in the ring", "[hang]") {
  RankSight first = sight_of(0), second = waiting(1, Group::pp, 4, "exchange", "pipeline");
  second.operations.clear();
  second.still.asleep = 60;
  CHECK_FALSE(verdict({first, second}, layout_of(1, 2, 1)));
}

TEST_CASE("a rank whose ring has overwritten its current operation waits for others", "[hang]") {
  RankSight late = waiting(1, Group::dp, 3, "reduce_scatter", "grad bucket 7");
  const auto ring_of_tp = [&](std::uint64_t first) {
    late.operations.clear();
    for (std::uint64_t i = first; i < first + 256; ++i)
      late.operations.push_back(operation("all_reduce", "tp", i, "row_linear", FlightState::done));
  };
  ring_of_tp(900);
  CHECK_FALSE(verdict({sight_of(0), late}, layout_of(1, 1, 2)));
  // The ring has not wrapped around: the rank is about to enter the operation.
  ring_of_tp(1);
  CHECK(verdict({sight_of(0), late}, layout_of(1, 1, 2))->kind == "asleep");
  // Likewise if an operation in progress is older than a completed one.
  ring_of_tp(900);
  late.operations.back().group = "dp";
  CHECK(verdict({sight_of(0), late}, layout_of(1, 1, 2))->kind == "asleep");
}

TEST_CASE("a host that waits for its device is judged by the device's operations", "[hang]") {
  const auto on_device = [](std::int64_t number, bool started) {
    RankSight sight = sight_of(number);
    sight.activity = Activity::report;
    sight.still = {.running = 20, .computing = 20};  // it polls
    if (started) sight.operations = {operation("all_reduce", "dp", 9, "gradients", FlightState::started)};
    return sight;
  };
  // Rank 1's kernels do not reach the all_reduce.
  auto found = verdict({on_device(0, true), on_device(1, false)}, layout_of(1, 1, 2));
  REQUIRE(found);
  CHECK_THAT(
      found->message,
      Catch::StartsWith("rank 1 (dp 1) never entered all_reduce #9 'gradients' of group dp; last seen in "
                        "the wait for the device at the end of microbatch 5 of step 12"));
  found = verdict({on_device(0, true), on_device(1, true)}, layout_of(1, 1, 2));
  REQUIRE(found);
  CHECK(found->kind == "stuck");
}

TEST_CASE("a host whose device waits for a message waits for others", "[hang]") {
  const auto on_device = [](std::int64_t number) {
    RankSight sight = sight_of(number);
    sight.activity = Activity::report, sight.chunk = sight.microbatch = -1;
    sight.still = {.running = 20, .computing = 20};  // it polls
    sight.operations = {operation("exchange", "pp", 9, "pipeline", FlightState::started)};
    return sight;
  };
  RankSight at_work = sight_of(0);
  at_work.activity = Activity::data_wait;
  CHECK_FALSE(verdict({at_work, on_device(1)}, layout_of(1, 2, 1)));
  at_work.still.stopped = 6;
  CHECK(verdict({at_work, on_device(1)}, layout_of(1, 2, 1))->ranks == Ranks{0});
  const auto found = verdict({on_device(0), on_device(1)}, layout_of(1, 2, 1));
  REQUIRE(found);
  CHECK(found->kind == "deadlock");
  CHECK(found->details[0] ==
        "rank 0 (pp 0) waits for a message of rank 1, in the wait for the device at the end of step 12");
  // A device without an operation in progress is judged by itself.
  RankSight alone = on_device(1);
  alone.operations[0].state = FlightState::done;
  CHECK(verdict({sight_of(0), alone}, layout_of(1, 2, 1))->kind == "spinning");
  // The host has issued more operations than the ring holds: the device's position is unknown.
  alone.operations[0].state = FlightState::enqueued;
  CHECK_FALSE(verdict({sight_of(0), alone}, layout_of(1, 2, 1)));
  HangLimits host = limits();
  CHECK(host.cause(on_device(1)) == core::run::HangCause::spinning);
  for (const auto awaits : {core::run::Awaits::others, core::run::Awaits::all_there})
    CHECK_FALSE(host.cause(on_device(1), awaits));
}

TEST_CASE("a slowed rank computes and does not sleep", "[hang][faults]") {
  const auto sleeps = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const double begin = base::monotonic_seconds();
  const auto before = sleeps();
  core::run::compute_for(0.2);
  CHECK(sleeps() == before);
  CHECK(base::monotonic_seconds() - begin >= 0.2);
}

namespace {

/// Waits for the members of a group to come, for 6 s.
RankSight meeting(std::int64_t number, Group group, std::int64_t node) {
  RankSight sight{.rank = number, .node = node, .activity = Activity::meet};
  sight.waits = group;
  sight.activity_seconds = sight.beat_seconds = 6;
  sight.still.asleep = 6;
  return sight;
}

RankSight loading(std::int64_t number, std::int64_t node, double seconds) {
  RankSight sight{.rank = number, .node = node, .activity = Activity::load};
  sight.activity_seconds = sight.beat_seconds = seconds;
  return sight;
}

}  // namespace

TEST_CASE("ranks that wait for others to come tell whom they miss, and what it does", "[hang]") {
  const parallel::Layout layout = layout_of(1, 1, 3);
  const auto wait = [](std::int64_t number) { return meeting(number, Group::world, number); };
  RankSight missing = loading(2, 2, 20);
  // It is at work: that may take a while.
  missing.still.computing = 19;
  CHECK_FALSE(verdict({wait(0), wait(1), missing}, layout));
  missing.still = {.asleep = 5.5};
  auto found = verdict({wait(0), wait(1), missing}, layout);
  REQUIRE(found);
  CHECK((found->kind == "meet" && !found->restart && found->ranks == Ranks{2}));
  CHECK(found->message ==
        "rank 2 (node 2, dp 2) has not come to group world; last seen in the load of its state, 20.0 s ago; "
        "its "
        "process sleeps, for 5.5 s; ranks 0, 1 wait for it");
  CHECK(found->deadline_seconds == 5);
  // One that has not shown anything yet.
  missing.activity = Activity::none;
  missing.still = {.disk = 7};
  CHECK_THAT(
      verdict({wait(0), wait(1), missing}, layout)->message,
      Catch::Contains("rank 2 (node 2, dp 2) has not come to group world; last seen in its start, 20.0 s "
                      "ago; its process waits for a disk or a device, for 7.0 s"));
  // One that is stopped ends the attempt.
  missing.still = {.stopped = 6};
  found = verdict({wait(0), wait(1), missing}, layout);
  REQUIRE(found);
  CHECK((found->kind == "stopped" && found->restart && found->ranks == Ranks{2}));
  CHECK_THAT(found->message, Catch::EndsWith("; ranks 0, 1 wait for it to come to group world"));
}

TEST_CASE("a rank that is long at work, or that is not seen, is missed after 12 times the minimum",
          "[hang]") {
  const parallel::Layout layout = layout_of(1, 1, 2);
  RankSight wait = meeting(0, Group::world, 0);
  RankSight missing = loading(1, 1, 61);
  missing.still.computing = 55;
  wait.beat_seconds = 59;
  CHECK_FALSE(verdict({wait, missing}, layout));
  CHECK_FALSE(verdict({wait}, layout));
  wait.beat_seconds = 60;
  auto found = verdict({wait, missing}, layout);
  REQUIRE(found);
  CHECK_THAT(found->message, Catch::EndsWith("; its process computes; rank 0 waits for it"));
  CHECK(found->deadline_seconds == 60);
  found = verdict({wait}, layout);
  REQUIRE(found);
  CHECK(found->message ==
        "rank 1 has not come to group world; its agent does not answer; rank 0 waits for it");
}

TEST_CASE("ranks that have all come and do not connect are told of as a link", "[hang]") {
  const parallel::Layout layout = layout_of(1, 1, 2);
  std::vector<RankSight> both{meeting(0, Group::world, 0), meeting(1, Group::world, 1)};
  CHECK_FALSE(verdict(both, layout));
  both[0].beat_seconds = both[1].beat_seconds = 61;
  const auto found = verdict(both, layout);
  REQUIRE(found);
  CHECK((found->kind == "meet" && !found->restart));
  CHECK(found->message ==
        "ranks 0, 1 have all come to group world and do not connect: a link between their nodes is down or "
        "loses what is sent");
  // In different groups they wait for each other's peers.
  both[1].waits = Group::dp;
  CHECK_FALSE(verdict(both, layout));
}

TEST_CASE("a rank that is missed in the first collective of a load is told of", "[hang]") {
  RankSight wait = waiting(1, Group::dp, 1, "all_gather", "parameters");
  wait.activity = Activity::load, wait.steps = 0, wait.step_seconds = 0;
  RankSight missing = asleep(loading(0, 0, 8), 7);
  const auto found = verdict({missing, wait}, layout_of(1, 1, 2));
  REQUIRE(found);
  CHECK(found->message ==
        "rank 0 (dp 0) has not entered all_gather #1 'parameters' of group dp; last seen in the load of its "
        "state, "
        "8.0 s ago; its process sleeps, for 7.0 s; rank 1 waits for it");
  CHECK_FALSE(found->restart);
  // The other may have gone on to the first step, and waits there.
  wait.activity = Activity::forward;
  CHECK(verdict({missing, wait}, layout_of(1, 1, 2))->kind == "meet");
  wait.steps = 1, wait.step_seconds = 60;
  CHECK_FALSE(verdict({missing, wait}, layout_of(1, 1, 2)));
}
