#include "core/run/agent/rank_watch.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/run/agent/process_look.h"
#include "core/run/supervise/hang_limits.h"
#include "core/run/worker/flight_segment.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

constexpr long kLookNanoseconds = 100'000'000;

}  // namespace

RankWatch::RankWatch(const base::Segment& flights, const NodeRanks& here, std::int64_t node,
                     std::vector<UsualTimes> usual)
    : flights_(flights),
      here_(here),
      usual_(std::move(usual)),
      node_(node),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      clocks_(static_cast<std::size_t>(here.count)) {
  usual_.resize(static_cast<std::size_t>(here.count));
  const timespec every{.tv_sec = 0, .tv_nsec = kLookNanoseconds};
  const itimerspec times{.it_interval = every, .it_value = every};
  if (!timer_ || ::timerfd_settime(timer_.get(), 0, &times, nullptr) != 0)
    throw base::device_error("cannot make a timer to watch the ranks: " + base::errno_text(errno));
}

void RankWatch::look(const std::vector<pid_t>& pids) {
  std::uint64_t times = 0;
  if (::read(timer_.get(), &times, sizeof(times)) < 0) return;  // not due
  const double now = base::monotonic_seconds();
  for (std::int64_t place = 0; place < here_.count; ++place) {
    const auto i = static_cast<std::size_t>(place);
    const train::RankPage& page = rank_page(flights_, place);
    if (pids[i] > 0)
      clocks_[i].look(now,
                      {.beats = page.beats(), .beat_at = page.beat_at(), .patient = patient(page.activity())},
                      [&] { return look_at(pids[i]); });
  }
}

RankSight RankWatch::sight(std::int64_t place, std::span<const parallel::FlightRecord> ring) const {
  const auto i = static_cast<std::size_t>(place);
  RankSight sight = sight_of(rank_page(flights_, place), ring, base::monotonic_seconds(), usual_[i]);
  const StillClock& clock = clocks_[i];
  sight.rank = here_.first + place;
  sight.node = node_;
  sight.still = clock.time();
  sight.process_state = clock.state();
  return sight;
}

std::vector<RankSight> RankWatch::sights() const {
  std::vector<RankSight> all;
  for (std::int64_t place = 0; place < here_.count; ++place)
    all.push_back(sight(place, flight_ring(flights_, place)));
  return all;
}

std::vector<UsualTimes> RankWatch::usual() const {
  std::vector<UsualTimes> all;
  for (std::int64_t place = 0; place < here_.count; ++place)
    all.push_back(UsualTimes::of(rank_page(flights_, place), usual_[static_cast<std::size_t>(place)]));
  return all;
}

std::vector<RankSight> RankWatch::pages() const {
  std::vector<RankSight> all;
  for (std::int64_t place = 0; place < here_.count; ++place) all.push_back(sight(place, {}));
  return all;
}

}  // namespace trainerd::core::run
