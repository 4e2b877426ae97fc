#pragma once

#include <optional>

namespace trainerd::core::run {

// The time limit of a run that is not training yet. It uses SIGALRM, so that every wait that a signal
// interrupts ends too (stop_request). One timer per process.

/// Raises SIGALRM at `deadline` (monotonic seconds), or at once if it has passed; none: no change.
void arm_time_limit(std::optional<double> deadline);
void disarm_time_limit();

}  // namespace trainerd::core::run
