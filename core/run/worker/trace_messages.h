#pragma once

#include <cstdint>
#include <vector>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// What a traced step of a rank was, between `begin` and `end` (monotonic seconds), in messages of a length
/// that the channel takes. Gaps between the slices are filled.
std::vector<StepTrace> trace_messages(std::int64_t step, std::vector<io::TraceSlice> slices,
                                      std::int64_t rank, double begin, double end);

}  // namespace trainerd::core::run
