#include "kernels/base/clock.h"

#include <ctime>

namespace trainerd::base {
namespace {

double read_clock(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

double monotonic_seconds() { return read_clock(CLOCK_MONOTONIC); }
double wall_seconds() { return read_clock(CLOCK_REALTIME); }

}  // namespace trainerd::base
