#pragma once

#include <sys/types.h>

#include "core/run/supervise/still_clock.h"

namespace trainerd::core::run {

/// Reads a process's state from /proc; state 'X' if it is gone.
ProcessLook look_at(pid_t pid);

}  // namespace trainerd::core::run
