#pragma once

#include <optional>

namespace trainerd::core::run {

// The time limit of a run that does not train yet: SIGALRM, so that every wait that a signal interrupts
// ends by it (stop_request). One timer per process.

/// SIGALRM at `deadline` (monotonic seconds), at once where that has passed; none: no change.
void arm_time_limit(std::optional<double> deadline);
void disarm_time_limit();

}  // namespace trainerd::core::run
