#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/base/clock.h"
#include "kernels/base/yield.h"

namespace trainerd::parallel {

/// Wakes the sleeping threads of one rank when something they wait for may have happened. It is in memory
/// that ranks share, as threads or as processes. All zeros is its initial state. A process that dies at any
/// point leaves it usable.
struct alignas(64) Notifier {
  std::atomic<std::uint32_t> count;  ///< number of notifications
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

/// Wakes every thread that sleeps on the notifier. Call it after the change that they wait for.
void notify(Notifier& notifier);
/// Sleeps until the next notification or for `seconds`. Returns at once if one came since `seen` was read.
void sleep_on(Notifier& notifier, std::uint32_t seen, double seconds);
/// CPU hint for a spin loop.
void relax();

/// Waits until `ready()`; false at `deadline` (base::monotonic_seconds). Polls for `spin_seconds`, then
/// yields a few times, then sleeps. No sleep is longer than kLongestSleepSeconds: if a peer is killed between
/// its change and its notification, this rank continues late, but it does continue.
constexpr double kLongestSleepSeconds = 0.05;
constexpr int kYields = 8;
template <class Ready>
bool wait_on(Notifier& notifier, double deadline, double spin_seconds, Ready&& ready) {
  if (ready()) return true;
  if (spin_seconds > 0) {
    const double end = base::monotonic_seconds() + spin_seconds;
    do {
      for (int i = 0; i < 16; ++i) relax();
      if (ready()) return true;
    } while (base::monotonic_seconds() < end);
  }
  if (base::yield_until(kYields, ready)) return true;
  for (;;) {
    const std::uint32_t seen = notifier.count.load();
    if (ready()) return true;
    const double left = deadline - base::monotonic_seconds();
    if (left <= 0) return false;
    sleep_on(notifier, seen, std::min(left, kLongestSleepSeconds));
  }
}

}  // namespace trainerd::parallel
