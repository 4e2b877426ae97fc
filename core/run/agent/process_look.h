#pragma once

#include <sys/types.h>

#include "core/run/supervise/still_clock.h"

namespace trainerd::core::run {

/// What /proc says of a process now; state 'X' for one that is gone.
ProcessLook look_at(pid_t pid);

}  // namespace trainerd::core::run
