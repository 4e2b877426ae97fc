#pragma once

#include "kernels/base/error.h"

namespace trainerd::apps {

// The exit status of every way to end, except a stop by signal (128 + its number, after saving).
inline constexpr int kExitDone = 0;
inline constexpr int kExitBug = 1;        // an error that has no remedy but a report
inline constexpr int kExitDifferent = 1;  // of `checkpoint diff` alone, as of diff(1)
inline constexpr int kExitUsage = 2;
inline constexpr int kExitOfSignal = 128;  // and its number, as a shell reports a process that it ended

constexpr int exit_code(base::ErrorKind kind) {
  switch (kind) {
    case base::ErrorKind::spec: return kExitUsage;
    case base::ErrorKind::capacity: return 3;
    case base::ErrorKind::data: return 4;
    case base::ErrorKind::checkpoint: return 5;
    case base::ErrorKind::diverged: return 6;
    case base::ErrorKind::comm: return 7;
    case base::ErrorKind::device: return 8;
  }
  return kExitBug;
}

}  // namespace trainerd::apps
