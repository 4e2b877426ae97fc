#pragma once

#include <string>
#include <vector>

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Lines about different jobs of the sweep that train the same: which jobs, and the keys without effect. One
/// line per set of such keys. Refused jobs are left out.
std::vector<std::string> same_job_remarks(const Sweep& sweep);

}  // namespace trainerd::core::sweep
