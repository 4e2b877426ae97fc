#pragma once

#include "io/records/trace.h"
#include "parallel/schedule/timeline.h"

namespace trainerd::core::plan {

/// A simulated pass over the pipeline as a trace. Each rank is a process with a row of computations (a fused
/// backward as its two gradients) and bubbles, and rows of messages. `costs` are those of the timeline, in
/// seconds.
io::Trace schedule_trace(const parallel::Timeline& timeline, const parallel::ActionCosts& costs);

}  // namespace trainerd::core::plan
