#pragma once

#include <string>
#include <vector>

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Lines about jobs that train the same although the sweep makes two of them: which jobs, and the keys that
/// change nothing, for a preset also which keys go over it. A line for each set of such keys. Refused jobs
/// are left out.
std::vector<std::string> same_job_remarks(const Sweep& sweep);

}  // namespace trainerd::core::sweep
