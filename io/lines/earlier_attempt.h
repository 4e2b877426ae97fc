#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/records/records.h"

namespace trainerd::io {

/// Returns what steps.jsonl records of the previous attempt, for an attempt that begins after `start_step`;
/// none if there are no lines. Call it before the log is cut back to that step. Unreadable lines are skipped.
std::optional<EarlierAttempt> read_earlier_attempt(const std::string& steps_path, std::int64_t start_step);

/// Returns what both logs record of the previous attempts, for an attempt that begins after `start_step`.
/// Call it before the logs are cut back.
EarlierRun read_earlier_run(const std::string& steps_path, const std::string& events_path,
                            std::int64_t start_step);

}  // namespace trainerd::io
