#pragma once

#include <cstdint>
#include <vector>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// The trace of a rank's step between `begin` and `end` (monotonic seconds), split into messages that the
/// channel accepts. Gaps between the slices are filled.
std::vector<StepTrace> trace_messages(std::int64_t step, std::vector<io::TraceSlice> slices,
                                      std::int64_t rank, double begin, double end);

}  // namespace trainerd::core::run
