#pragma once

#include <cstdint>

namespace trainerd::apps {

/// Raises the process' limit on open files to its hard limit. All ranks connect to node 0, and workers
/// inherit the limit. Throws CapacityError with both numbers if `ranks_here` of the job's `ranks` need more.
void allow_descriptors(std::int64_t ranks_here, std::int64_t ranks);

}  // namespace trainerd::apps
