#pragma once

// What the emulation's own tests share.

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <functional>

#include "tests/kernels/simt/simt.h"

namespace trainerd::test {

inline constexpr simt::Order kOrders[] = {simt::Order::forward, simt::Order::backward, simt::Order::shuffled};

/// True if running the kernel in a block of `threads`, with `shared` bytes of shared memory, ends the
/// process.
inline bool ends(unsigned threads, unsigned shared, const std::function<void()>& kernel) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);
    ::freopen("/dev/null", "w", stderr);
    simt::set_order(simt::Order::forward);
    simt::run({1, 1, 1}, {threads, 1, 1}, kernel, shared);
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status);
}

}  // namespace trainerd::test
