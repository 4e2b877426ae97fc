#pragma once

#include <cstdint>
#include <string>

#include "core/run/supervise/repeated_failure.h"

namespace trainerd::core::run {

// Failure counts by place (RepeatedFailure), in a file of the output directory. The next run of the job
// continues these counts.

/// Adds the counted failures in steps after `step`, the last step that is done. A missing file adds none.
/// Returns why the file could not be read; empty on success. The counts are unchanged on an error.
std::string restore_failures(RepeatedFailure& failures, const std::string& path, std::int64_t step);
/// Returns why the file could not be written; empty on success.
std::string write_failures(const RepeatedFailure& failures, const std::string& path);

}  // namespace trainerd::core::run
