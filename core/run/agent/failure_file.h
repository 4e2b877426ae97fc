#pragma once

#include <cstdint>
#include <string>

#include "core/run/supervise/repeated_failure.h"

namespace trainerd::core::run {

// The failures that a run has counted by place (RepeatedFailure), in a file of its output directory, so that
// a job that is requeued goes on counting.

/// Adds what the file at `path` holds, if it is there, to `failures`; `step` is done. Returns what is wrong
/// with a file that cannot be read: the count begins anew.
std::string restore_failures(RepeatedFailure& failures, const std::string& path, std::int64_t step);
/// Returns why it could not be written; empty: it was.
std::string write_failures(const RepeatedFailure& failures, const std::string& path);

}  // namespace trainerd::core::run
