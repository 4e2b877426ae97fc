#pragma once

#include <string>
#include <vector>

#include "core/sweep/outcome.h"

namespace trainerd::core::sweep {

/// The results as one self-contained HTML page: a chart of parallel coordinates, and the table with a link to
/// each job's report.
std::string sweep_page(const Sweep& sweep, const std::vector<JobResult>& results);

}  // namespace trainerd::core::sweep
