#pragma once

#include <cstdint>

namespace trainerd::apps {

/// Raises the process' limit on open files as far as it may: connections of every rank end at node 0, and
/// workers inherit the limit for theirs. Throws CapacityError, with both numbers, when `ranks_here` of the
/// job's `ranks` need more than that.
void allow_descriptors(std::int64_t ranks_here, std::int64_t ranks);

}  // namespace trainerd::apps
