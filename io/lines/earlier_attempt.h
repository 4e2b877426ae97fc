#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/records/records.h"

namespace trainerd::io {

/// What steps.jsonl says of the attempt before one that begins after `start_step`; none without a line. To be
/// read before the log is cut back to that step. Lines that cannot be read are passed over.
std::optional<EarlierAttempt> read_earlier_attempt(const std::string& steps_path, std::int64_t start_step);

}  // namespace trainerd::io
