// Heartbeats between agents: when a peer counts as dead.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "core/run/nodes/beat_watch.h"
#include "core/run/nodes/heartbeats.h"
#include "core/run/nodes/last_beat.h"
#include "kernels/base/clock.h"

using namespace trainerd;
using core::run::BeatOptions;
using core::run::BeatWatch;
using core::run::Heartbeats;
using Counts = Heartbeats::Counts;
using What = Heartbeats::Report::What;

namespace {

/// Judges every quarter of a beat until `end`. Peer 1 beats each time, peer 2 never.
std::vector<BeatWatch::Silent> judge_until(BeatWatch& watch, double begin, double end) {
  for (double now = begin; now <= end; now += 0.25) {
    watch.on_beat(1, now);
    if (auto silent = watch.judge(now); !silent.empty()) return silent;
  }
  return {};
}

std::pair<base::UniqueFd, base::UniqueFd> connection() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

/// Reports that arrive within a minute.
std::vector<Heartbeats::Report> wait_for_report(Heartbeats& beats) {
  const double end = base::monotonic_seconds() + 60;
  while (base::monotonic_seconds() < end) {
    if (auto reports = beats.take(); !reports.empty()) return reports;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return {};
}

}  // namespace

TEST_CASE("only a peer without beats counts as dead, after the time and once", "[heartbeat]") {
  BeatWatch watch({.every_seconds = 1, .dead_seconds = 5});
  watch.add(1, 100);
  watch.add(2, 100);
  CHECK(judge_until(watch, 100, 104.75).empty());
  CHECK(watch.longest(104.75) == Approx(4.75));
  const auto silent = judge_until(watch, 105, 105);
  REQUIRE(silent.size() == 1);
  CHECK((silent[0].peer == 2 && silent[0].seconds == Approx(5)));
  CHECK(judge_until(watch, 105.25, 120).empty());
  // A removed or unknown peer is not judged, even if a beat arrives.
  watch.on_beat(2, 121);
  watch.forget(1);
  CHECK(watch.judge(122).empty());
  CHECK(watch.longest(122) == 0);
}

TEST_CASE("a process that did not run itself judges no peer by that time", "[heartbeat]") {
  BeatWatch watch({.every_seconds = 1, .dead_seconds = 5});
  watch.add(1, 100);
  watch.add(2, 100);
  CHECK(judge_until(watch, 100, 103).empty());
  // Stopped for a minute. Beats that arrived meanwhile are read first; peer 2 sent none.
  CHECK(judge_until(watch, 163, 164.75).empty());
  const auto silent = judge_until(watch, 165, 170);
  REQUIRE(silent.size() == 1);
  CHECK(silent[0].peer == 2);
  CHECK(silent[0].seconds == Approx(5).margin(0.3));
}

TEST_CASE("agents exchange beats, and one that ends without notice is reported", "[heartbeat]") {
  const BeatOptions options{.every_seconds = 0.05, .dead_seconds = 2};
  auto [a, b] = connection();
  Heartbeats here(options);
  {
    Heartbeats there(options);
    here.add(7, std::move(a), Counts::at_once);
    there.add(3, std::move(b), Counts::at_once);
    const double end = base::monotonic_seconds() + 3;
    while (base::monotonic_seconds() < end) {
      CHECK(here.take().empty());
      CHECK(there.take().empty());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  const auto reports = wait_for_report(here);
  REQUIRE(reports.size() == 1);
  CHECK((reports[0].what == What::silent && reports[0].peer == 7));
  CHECK(reports[0].seconds >= 2);
}

TEST_CASE("a new peer gets a beat at once", "[heartbeat]") {
  Heartbeats here({.every_seconds = 600, .dead_seconds = 6000});
  for (const std::int64_t peer : {1, 2}) {
    auto [a, b] = connection();
    here.add(peer, std::move(a), Counts::at_once);
    pollfd beat{b.get(), POLLIN, 0};
    CHECK(::poll(&beat, 1, 30'000) == 1);
  }
}

TEST_CASE("a peer that is removed is not reported", "[heartbeat]") {
  auto [a, b] = connection();
  auto [c, d] = connection();
  Heartbeats here({.every_seconds = 0.05, .dead_seconds = 0.5});
  here.add(1, std::move(a), Counts::at_once);
  here.add(2, std::move(c), Counts::at_once);
  here.remove(1);
  const auto reports = wait_for_report(here);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].peer == 2);
}

TEST_CASE("an agent with a blocked event loop is alive and reports it", "[heartbeat]") {
  const BeatOptions options{.every_seconds = 0.05, .dead_seconds = 0.5};
  auto [a, b] = connection();
  Heartbeats here(options), there(options);
  there.loop_works();
  here.add(1, std::move(a), Counts::at_once);
  there.add(1, std::move(b), Counts::at_once);
  const auto reports = wait_for_report(here);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].what == What::busy);
  CHECK(reports[0].seconds >= 0.5);
  // Reported once, and again after the loop has turned.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(here.take().empty());
  there.loop_waits();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  there.loop_works();
  CHECK(wait_for_report(here).size() == 1);
}

TEST_CASE("a peer that is slow to accept the connection is not dead, but can be after its first beat",
          "[heartbeat]") {
  const BeatOptions options{.every_seconds = 0.05, .dead_seconds = 0.5};
  auto [a, b] = connection();
  Heartbeats here(options);
  here.add(1, std::move(a), Counts::from_first_beat);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  CHECK(here.take().empty());
  CHECK_FALSE(here.in_doubt());
  // One beat, then silence.
  const std::uint64_t beat = 0;
  REQUIRE(::send(b.get(), &beat, sizeof(beat), 0) == sizeof(beat));
  const auto reports = wait_for_report(here);
  REQUIRE(reports.size() == 1);
  CHECK((reports[0].what == What::silent && reports[0].peer == 1));
}

TEST_CASE("a process counts itself as lost, by its own clock, when its peer sent no beat", "[heartbeat]") {
  auto [a, b] = connection();
  Heartbeats here({.every_seconds = 0.2, .dead_seconds = 1});
  const std::function<bool()> counted_on = here.counted_on();
  here.add(1, std::move(a), Counts::from_first_beat);
  const auto pause = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  const std::uint64_t beat = 0;
  const auto beat_once = [&, fd = b.get()] { REQUIRE(::send(fd, &beat, sizeof(beat), 0) == sizeof(beat)); };
  const auto comes_to = [&](bool wanted, double seconds) {
    for (const double end = base::monotonic_seconds() + seconds; base::monotonic_seconds() < end;
         pause(0.005))
      if (counted_on() == wanted) return true;
    return counted_on() == wanted;
  };
  // Before the first beat the peer may be slow to accept the connection.
  pause(1.5);
  CHECK(counted_on());
  beat_once();
  CHECK(comes_to(false, 60));
  CHECK(wait_for_report(here).size() == 1);
  // Beats in a burst may have been sent before the silence: only a later beat counts.
  Heartbeats again({.every_seconds = 0.2, .dead_seconds = 1});
  const std::function<bool()> counted_again = again.counted_on();
  auto [c, d] = connection();
  again.add(1, std::move(c), Counts::from_first_beat);
  REQUIRE(::send(d.get(), &beat, sizeof(beat), 0) == sizeof(beat));
  pause(0.1);
  CHECK(counted_again());
  again.peer_has_ended();
  pause(1.2);
  CHECK(counted_again());
}

TEST_CASE("beats that pile up while a process is stopped do not count for it", "[heartbeat]") {
  using core::run::LastBeat;
  LastBeat last({.every_seconds = 1, .dead_seconds = 5});
  CHECK(last.recent(100));
  for (double now = 100; now <= 110; ++now) last.on_beat(now);
  CHECK((last.recent(114.9) && !last.recent(115)));
  // Stopped until 130. Beats that arrived meanwhile are read at once; then one beat per second again.
  for (const double now : {130.0, 130.001, 130.002}) last.on_beat(now);
  CHECK_FALSE(last.recent(130.01));
  last.on_beat(131);
  CHECK(last.recent(131));
  // Two stops in a row, with a burst after each.
  last.on_beat(150);
  last.on_beat(170);
  last.on_beat(170.1);
  CHECK_FALSE(last.recent(170.2));
  last.on_beat(170.8);
  CHECK(last.recent(170.9));
}

TEST_CASE("a peer that closes the connection without a beat is silent from then on", "[heartbeat]") {
  auto [a, b] = connection();
  Heartbeats here({.every_seconds = 0.05, .dead_seconds = 0.5});
  here.add(1, std::move(a), Counts::from_first_beat);
  b.reset();
  const auto reports = wait_for_report(here);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].what == What::silent);
}

TEST_CASE("over a dropped link no beat passes, and they pass again when it is back", "[heartbeat]") {
  const auto drop = [](double seconds, double dead_seconds) {
    const BeatOptions options{.every_seconds = 0.05, .dead_seconds = dead_seconds};
    auto [a, b] = connection();
    auto here = std::make_unique<Heartbeats>(options), there = std::make_unique<Heartbeats>(options);
    here->add(1, std::move(a), Counts::at_once);
    there->add(2, std::move(b), Counts::at_once);
    there->drop_link(seconds);
    return std::pair(std::move(here), std::move(there));
  };
  const auto [here, there] = drop(3600, 1);
  for (Heartbeats* side : {here.get(), there.get()}) {
    const auto reports = wait_for_report(*side);
    REQUIRE(reports.size() == 1);
    CHECK((reports[0].what == What::silent && reports[0].seconds >= 1));
  }
  // Shorter than `dead_seconds`.
  const auto [early, late] = drop(0.5, 60);
  const double end = base::monotonic_seconds() + 60;
  while (!late->in_doubt() && base::monotonic_seconds() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(late->in_doubt());
  while ((late->in_doubt() || early->in_doubt()) && base::monotonic_seconds() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_FALSE((late->in_doubt() || early->in_doubt()));
}
