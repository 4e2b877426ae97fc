#include "core/run/stop/limit_alarm.h"

#include <sys/time.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/clock.h"

namespace trainerd::core::run {

void arm_time_limit(std::optional<double> deadline) {
  if (!deadline) return;
  const double left = std::max(1e-6, *deadline - base::monotonic_seconds());
  const double seconds = std::floor(left);
  const itimerval timer{
      .it_interval = {},
      .it_value = {.tv_sec = static_cast<time_t>(seconds),
                   .tv_usec = std::max<suseconds_t>(1, static_cast<suseconds_t>(1e6 * (left - seconds)))}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

void disarm_time_limit() {
  const itimerval none{};
  ::setitimer(ITIMER_REAL, &none, nullptr);
}

}  // namespace trainerd::core::run
