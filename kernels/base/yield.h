#pragma once

#include <sched.h>

namespace trainerd::base {

/// Yields the core up to `times` times until `ready()`; returns whether it is. To sleep and to be woken are
/// two system calls, and often a mutex that both threads want. Where the other thread is about to finish, or
/// needs this thread's core, this is cheaper.
template <class Ready>
bool yield_until(int times, const Ready& ready) {
  for (int i = 0; i < times; ++i) {
    if (ready()) return true;
    ::sched_yield();
  }
  return ready();
}

}  // namespace trainerd::base
