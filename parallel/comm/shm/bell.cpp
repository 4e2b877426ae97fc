#include "parallel/comm/shm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainerd::parallel {

// Why no ring is lost: the sleeper counts itself in, then the kernel compares `rings` with what it saw; the
// ringer raises `rings`, then reads `sleepers`. In the single order of these operations a ringer that reads
// no sleeper came before the sleeper's comparison, which then fails. (Not FUTEX_PRIVATE: the sleepers may be
// other processes.)
void ring(Bell& bell) {
  bell.rings.fetch_add(1);
  if (bell.sleepers.load() > 0)
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell.rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
              0);
}

void sleep_at(Bell& bell, std::uint32_t seen, double seconds) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_nsec = static_cast<long>((seconds - static_cast<double>(timeout.tv_sec)) * 1e9);
  bell.sleepers.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell.rings), FUTEX_WAIT, seen, &timeout, nullptr, 0);
  bell.sleepers.fetch_sub(1);
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace trainerd::parallel
