#pragma once

#include <cstdint>
#include <string>

#include "core/run/supervise/repeated_failure.h"

namespace trainerd::core::run {

// A file in the output directory keeps a run's failures, counted by place (RepeatedFailure). The next run of
// the job continues these counts.

/// Adds the failures of the file at `path` after `step`, the last step that is done. A missing file adds
/// none. Returns what is wrong with a file that cannot be read; the counts then begin at zero.
std::string restore_failures(RepeatedFailure& failures, const std::string& path, std::int64_t step);
/// Returns what failed; empty on success.
std::string write_failures(const RepeatedFailure& failures, const std::string& path);

}  // namespace trainerd::core::run
