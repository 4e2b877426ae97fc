#pragma once

#include <string>

#include "io/metrics/report/page.h"

namespace trainerd::io {

/// Builds the report of report.html from a run's output directory, during or after the run. Throws SpecError
/// if it is not a run's directory or cannot be read.
Report load_report(const std::string& directory);

}  // namespace trainerd::io
