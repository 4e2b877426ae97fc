#pragma once

#include "kernels/base/error.h"

namespace trainerd::apps {

// The exit statuses, except that of a stop by a signal (128 plus its number, after a save).
inline constexpr int kExitDone = 0;
inline constexpr int kExitBug = 1;        // an error whose only remedy is a report
inline constexpr int kExitDifferent = 1;  // for `checkpoint diff` only, as diff(1)
inline constexpr int kExitUsage = 2;
inline constexpr int kExitOfSignal = 128;  // plus the signal's number, as shells report it

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
