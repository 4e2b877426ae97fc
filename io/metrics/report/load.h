#pragma once

#include <string>

#include "io/metrics/report/page.h"

namespace trainerd::io {

/// What a run's output directory says, while it goes on or after it: the report of report.html, made anew.
/// Throws SpecError when it is not a run's directory, or cannot be read.
Report load_report(const std::string& directory);

}  // namespace trainerd::io
