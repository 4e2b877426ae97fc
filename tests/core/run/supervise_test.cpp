// Supervision of ranks: their pages, the state of their processes, and stragglers.

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/run/agent/process_look.h"
#include "core/run/agent/rank_watch.h"
#include "core/run/supervise/rank_sight.h"
#include "core/run/supervise/still_clock.h"
#include "core/run/supervise/straggler_watch.h"
#include "core/run/worker/flight_segment.h"

using namespace trainerd;
using core::run::ProcessLook;
using core::run::StillClock;
using core::run::StillTime;
using core::run::StragglerWatch;
using core::train::Activity;
using core::train::RankPage;

namespace {

/// Looks at a process every quarter of a second. `cpu` is its CPU time in seconds at the last look.
struct Watched {
  StillClock clock;
  double now = 100;
  double cpu = 7;

  void look(ProcessLook process, double cpu_more = 0, double after = 0.25, bool patient = false) {
    now += after;
    process.cpu_seconds = cpu += cpu_more;
    clock.look(now, {.beats = 5, .patient = patient}, [&] { return process; });
  }
};

constexpr ProcessLook kAsleep{.state = 'S'}, kStopped{.state = 'T'}, kRuns{.state = 'R', .runnable = true};

/// Gives the watch a window of ten steps; `seconds`: per step, by rank.
std::vector<StragglerWatch::Change> window(StragglerWatch& watch, const std::vector<double>& seconds,
                                           int number) {
  std::vector<StragglerWatch::Change> changes;
  for (const std::int64_t at : {0, 10})
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      static std::map<std::pair<StragglerWatch*, std::size_t>, double> sums;
      double& sum = sums[{&watch, i}];
      if (at > 0) sum += 10 * seconds[i];
      for (const auto& change : watch.add({static_cast<std::int64_t>(i), 10 * number + at, sum},
                                          100.0 * number + static_cast<double>(at) * 9.9))
        changes.push_back(change);
    }
  return changes;
}

}  // namespace

TEST_CASE("a page shows its rank's activity and its duration", "[supervise]") {
  const base::Segment segment = core::run::make_flight_segment(2);
  RankPage& page = core::run::rank_page(segment, 1);
  CHECK((page.activity() == Activity::none && page.beats() == 0 && !page.waits()));
  page.enter(Activity::forward, 2, 7);
  CHECK((page.activity() == Activity::forward && page.chunk() == 2 && page.microbatch() == 7));
  const std::uint64_t beats = page.beats();
  page.wait(parallel::Group::tp);
  CHECK((page.waits() == parallel::Group::tp && page.beats() == beats + 1));
  page.resume();
  CHECK((!page.waits() && page.beats() == beats + 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  page.begin_step(4);
  CHECK((page.step() == 4 && page.activity() == Activity::between && page.chunk() == -1));
  CHECK(page.longest_seconds(Activity::forward) >= 0.02);
  CHECK(page.longest_seconds(Activity::backward) == 0);
  CHECK((page.steps() == 0 && page.median_step_seconds() == 0));
  for (const double seconds : {3.0, 1.0, 100.0}) page.end_step(seconds);
  CHECK((page.steps() == 3 && page.median_step_seconds() == 3));
  // Old durations are forgotten.
  for (std::size_t i = 0; i < RankPage::kDurations; ++i) {
    page.enter(Activity::forward);
    page.enter(Activity::backward);
  }
  CHECK(page.longest_seconds(Activity::forward) < 0.02);
  for (std::size_t i = 0; i < RankPage::kSteps; ++i) page.end_step(2);
  CHECK(page.median_step_seconds() == 2);
  page.expect_longer(1.5);
  CHECK(page.median_step_seconds() == 3);
  page.expect_longer(0.5);
  CHECK(page.median_step_seconds() == 3);
  CHECK(core::run::rank_page(segment, 0).beats() == 0);
}

TEST_CASE("the sight of a rank goes to another node unchanged", "[supervise]") {
  const base::Segment segment = core::run::make_flight_segment(1);
  parallel::FlightRecorder recorder(core::run::flight_ring(segment, 0));
  parallel::FlightRecord record;
  record.sequence = 8, record.bytes = 24, record.group_size = 2;
  parallel::put_text(record.op, "all_reduce");
  parallel::put_text(record.group, "tp");
  parallel::put_text(record.label, "row_linear");
  recorder.started(recorder.enqueued(record));
  RankPage& page = core::run::rank_page(segment, 0);
  page.begin_step(3);
  page.enter(Activity::backward, 1, 2);
  page.wait(parallel::Group::tp);
  const double now = base::monotonic_seconds() + 12;
  core::run::RankSight sight = core::run::sight_of(page, core::run::flight_ring(segment, 0), now);
  sight.rank = 6, sight.node = 1, sight.still = {1, 2, 3, 4, 5}, sight.process_state = 'T';
  const core::run::RankSight read = core::run::sight_from(core::run::to_json(sight));
  CHECK(core::run::to_json(read) == core::run::to_json(sight));
  CHECK((read.rank == 6 && read.node == 1 && read.step == 3 && read.activity == Activity::backward));
  CHECK((read.waits == parallel::Group::tp && read.still == StillTime{1, 2, 3, 4, 5} &&
         read.process_state == 'T'));
  CHECK(read.beat_seconds == Approx(12).margin(1));
  REQUIRE(read.operations.size() == 1);
  CHECK(read.operations[0].state == parallel::FlightState::started);
  CHECK(read.operations[0].started_ago == Approx(12).margin(1));
  CHECK((read.operations[0].label == "row_linear" && read.operations[0].dtype == "fp32"));
}

TEST_CASE("time without progress is counted by the state of the process", "[supervise]") {
  Watched w;
  w.look(kAsleep);  // the page has changed since the look before
  w.look(kAsleep);  // a first look at the process
  CHECK(w.clock.time() == StillTime{});
  w.look(kAsleep);
  w.look(kAsleep, 0.002);  // it polls
  CHECK(w.clock.time() == StillTime{.asleep = 0.5});
  // The process gets a tenth of a core: no sleep, and `computing` grows by its CPU time only.
  w.look(kRuns, 0.025);
  w.look({.state = 'S', .runnable = true});  // one of its threads waits for a core
  CHECK(w.clock.time().asleep == 0.5);
  CHECK(w.clock.time().computing == Approx(0.025));
  CHECK(w.clock.time().running == 0.5);
  w.look(kStopped);
  w.look({.state = 'D'});
  CHECK((w.clock.time().stopped == 0.25 && w.clock.time().disk == 0.25 && w.clock.state() == 'D'));
  // A change of the page resets the times.
  w.now += 0.25;
  w.clock.look(w.now, {.beats = 6}, [] { return kAsleep; });
  CHECK(w.clock.time() == StillTime{});
}

TEST_CASE("nothing counts while the agent itself did not run, or a debugger holds the process",
          "[supervise]") {
  Watched w;
  for (int i = 0; i < 3; ++i) w.look(kStopped);
  CHECK(w.clock.time().stopped == 0.5);
  w.look(kStopped, 0, 60);  // the machine was suspended, or the agent stopped
  CHECK(w.clock.time().stopped == 0.5);
  w.look(kStopped, 0, StillClock::kLongestGap);
  CHECK(w.clock.time().stopped == 1.5);
  w.look({.state = 'S', .traced = true});
  CHECK(w.clock.time() == StillTime{});
}

TEST_CASE("a process stopped between two looks counts as stopped since its last beat", "[supervise]") {
  // It beats until 100.03 and is then stopped. The looks are 0.1 s apart.
  StillClock clock;
  clock.look(100, {.beats = 4, .beat_at = 99.99}, [] { return kRuns; });
  clock.look(100.1, {.beats = 9, .beat_at = 100.03}, [] { return kStopped; });
  clock.look(100.2, {.beats = 9, .beat_at = 100.03}, [] { return kStopped; });
  CHECK(clock.time().stopped == Approx(0.1));
  // After a beat since the last look, only the time after the beat counts.
  clock.look(100.3, {.beats = 10, .beat_at = 100.21}, [] { return kStopped; });
  clock.look(100.31, {.beats = 10, .beat_at = 100.305}, [] { return kStopped; });
  CHECK(clock.time().stopped == Approx(0.005));
  // A process asleep at the first look may have computed before it.
  clock.look(100.4, {.beats = 11, .beat_at = 100.35}, [] { return kAsleep; });
  clock.look(100.5, {.beats = 11, .beat_at = 100.35}, [] { return kAsleep; });
  CHECK(clock.time() == StillTime{});
}

TEST_CASE("a process that reads slow files is asleep since its last use of the CPU", "[supervise]") {
  Watched w;
  for (int i = 0; i < 6; ++i) w.look(kAsleep, 0, 0.25, true);
  CHECK(w.clock.time().asleep == 1);
  w.look(kAsleep, 0.01, 0.25, true);
  CHECK(w.clock.time().asleep == 0);
  w.look(kAsleep, 0, 0.25, true);
  CHECK(w.clock.time().asleep == 0.25);
}

TEST_CASE("a look at a process gives its state, its CPU time, and whether it has ended", "[supervise]") {
  const ProcessLook own = core::run::look_at(::getpid());
  CHECK((own.state == 'R' && own.runnable));
  const double end = base::monotonic_seconds() + 0.2;
  while (base::monotonic_seconds() < end) {}
  CHECK(core::run::look_at(::getpid()).cpu_seconds > own.cpu_seconds);
  CHECK(core::run::look_at(-1).state == 'X');
}

TEST_CASE("a watch sees the page of each rank of its node", "[supervise]") {
  const base::Segment segment = core::run::make_flight_segment(2);
  core::run::RankWatch watch(segment, {4, 2}, 1);
  core::run::rank_page(segment, 1).begin_step(9);
  const auto pages = watch.pages();
  REQUIRE(pages.size() == 2);
  CHECK((pages[0].rank == 4 && pages[1].rank == 5 && pages[1].node == 1 && pages[1].step == 9));
  pollfd due{watch.event_fd(), POLLIN, 0};
  CHECK(::poll(&due, 1, 10'000) == 1);
  watch.look({::getpid(), 0});
  due.revents = 0;
  CHECK(::poll(&due, 1, 0) == 0);
}

TEST_CASE("the ranks of an attempt are compared with the times of the attempt before", "[supervise]") {
  const base::Segment before = core::run::make_flight_segment(1), after = core::run::make_flight_segment(1);
  RankPage& old = core::run::rank_page(before, 0);
  old.enter(Activity::evaluation);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  old.enter(Activity::forward);
  for (const double seconds : {3.0, 2.0, 4.0}) old.end_step(seconds);
  core::run::RankWatch watch(after, {0, 1}, 0, core::run::RankWatch(before, {0, 1}, 0).usual());
  RankPage& page = core::run::rank_page(after, 0);
  page.enter(Activity::evaluation);
  const core::run::RankSight first = watch.pages().at(0);
  CHECK((first.steps == 0 && first.step_seconds == 3 && first.longest_seconds >= 0.02));
  // The new page has its own times now, except for an evaluation.
  page.enter(Activity::forward);
  page.end_step(7);
  CHECK(watch.pages().at(0).step_seconds == 7);
  CHECK(watch.usual().at(0).step_seconds == 7);
  CHECK(watch.usual().at(0).longest_seconds.at(static_cast<std::size_t>(Activity::load)) == 0);
}

TEST_CASE("a rank that computes longer than its peers for three windows is a straggler", "[straggler]") {
  StragglerWatch watch({{0, 1, 2, 3}});
  const std::vector<double> even{1.00, 1.01, 0.99, 1.00}, slow{1.00, 1.01, 1.30, 0.99};
  CHECK(window(watch, even, 1).empty());
  CHECK(window(watch, slow, 2).empty());
  CHECK(window(watch, slow, 3).empty());
  CHECK(window(watch, even, 4).empty());  // slow in two windows, but not in three in a row
  CHECK(window(watch, slow, 5).empty());
  CHECK(window(watch, slow, 6).empty());
  const auto begins = window(watch, slow, 7);
  REQUIRE(begins.size() == 1);
  CHECK((begins[0].rank == 2 && begins[0].slow));
  CHECK(begins[0].excess == Approx(0.3));
  CHECK(begins[0].seconds == Approx(1.3));
  CHECK(StragglerWatch::text_of(begins[0], "rank 2 (dp 2)") ==
        "rank 2 (dp 2) is slow: it computes 30% longer per step than the median of its pipeline stage "
        "(1300.0 ms against 1000.0 ms)");
  CHECK(window(watch, slow, 8).empty());  // reported once
  CHECK(window(watch, even, 9).empty());
  CHECK(window(watch, even, 10).empty());
  const auto ends = window(watch, even, 11);
  REQUIRE(ends.size() == 1);
  CHECK((ends[0].rank == 2 && !ends[0].slow));
  CHECK(StragglerWatch::text_of(ends[0], "rank 2 (dp 2)") == "rank 2 (dp 2) is not slow any more");
}

TEST_CASE("noise of all ranks, a small difference and other work make no straggler", "[straggler]") {
  StragglerWatch noisy({{0, 1, 2, 3}}), small({{0, 1, 2, 3}}), pair({{0, 1}}), stages({{0, 1}, {2, 3}});
  for (int i = 1; i < 8; ++i) {
    CHECK(window(noisy, {1.0, 1.4, 0.7, 1.6}, i).empty());
    CHECK(window(small, {1.0, 1.0, 1.0, 1.09}, i).empty());
    CHECK(window(pair, {1.0, 1.2}, i).empty());
    CHECK(window(stages, {1.0, 1.0, 2.0, 2.0}, i).empty());
  }
  StragglerWatch two({{0, 1}});
  CHECK(window(two, {1.0, 1.3}, 1).empty());
  CHECK(window(two, {1.0, 1.3}, 2).empty());
  CHECK(window(two, {1.0, 1.3}, 3).size() == 1);
  two.restart();  // the windows of new processes count from 0
  CHECK(window(two, {1.0, 1.3}, 1).empty());
  CHECK(StragglerWatch({{0}, {1}}).add({0, 100, 5}, 1000).empty());
}
