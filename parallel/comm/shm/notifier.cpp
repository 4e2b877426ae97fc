#include "parallel/comm/shm/notifier.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainerd::parallel {

// No notification is lost. The sleeper increments `sleepers`, then the kernel compares `count` with the value
// it saw. The notifying thread increments `count`, then reads `sleepers`. These operations have a single
// total order. So if the notifier reads no sleepers, its increment came before the sleeper's comparison,
// which then fails. (Not FUTEX_PRIVATE: the sleepers may be in other processes.)
void notify(Notifier& notifier) {
  notifier.count.fetch_add(1);
  if (notifier.sleepers.load() > 0)
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&notifier.count), FUTEX_WAKE, INT_MAX, nullptr,
              nullptr, 0);
}

void sleep_on(Notifier& notifier, std::uint32_t seen, double seconds) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_nsec = static_cast<long>((seconds - static_cast<double>(timeout.tv_sec)) * 1e9);
  notifier.sleepers.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&notifier.count), FUTEX_WAIT, seen, &timeout, nullptr,
            0);
  notifier.sleepers.fetch_sub(1);
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace trainerd::parallel
