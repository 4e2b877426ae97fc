#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/records/records.h"

namespace trainerd::io {

/// What steps.jsonl says of the attempt before one that begins after `start_step`; none without a line. To be
/// read before the log is cut back to that step. Lines that cannot be read are passed over.
std::optional<EarlierAttempt> read_earlier_attempt(const std::string& steps_path, std::int64_t start_step);

/// What both logs say of the attempts before one that begins after `start_step`; also to be read before they
/// are cut back.
EarlierRun read_earlier_run(const std::string& steps_path, const std::string& events_path,
                            std::int64_t start_step);

}  // namespace trainerd::io
