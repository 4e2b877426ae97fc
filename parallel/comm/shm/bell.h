#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/base/clock.h"

namespace trainerd::parallel {

/// Where the threads of one rank sleep until something they wait for may have happened. Lies in memory that
/// ranks share: threads of one process or processes. All zeros is its initial state, and a process that dies
/// at any point leaves it usable.
struct alignas(64) Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

/// Wakes all who sleep at the bell. Call it after the change they wait for.
void ring(Bell& bell);
/// Sleeps until the bell rings, unless it has rung since `seen` was read, or until `seconds` have passed.
void sleep_at(Bell& bell, std::uint32_t seen, double seconds);
/// A hint to the core inside a spin.
void relax();

/// Waits until `ready()`; false when it is not by `deadline` (base::monotonic_seconds). Polls for
/// `spin_seconds` first. No sleep is longer than kLongestSleepSeconds: a peer killed between its change and
/// its ring delays, but cannot lose us.
constexpr double kLongestSleepSeconds = 0.05;
template <class Ready>
bool wait_at(Bell& bell, double deadline, double spin_seconds, Ready&& ready) {
  if (ready()) return true;
  if (spin_seconds > 0) {
    const double end = base::monotonic_seconds() + spin_seconds;
    do {
      for (int i = 0; i < 16; ++i) relax();
      if (ready()) return true;
    } while (base::monotonic_seconds() < end);
  }
  for (;;) {
    const std::uint32_t seen = bell.rings.load();
    if (ready()) return true;
    const double left = deadline - base::monotonic_seconds();
    if (left <= 0) return false;
    sleep_at(bell, seen, std::min(left, kLongestSleepSeconds));
  }
}

}  // namespace trainerd::parallel
