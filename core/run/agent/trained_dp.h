#pragma once

#include <cstdint>
#include <optional>

#include "core/job/job.h"
#include "io/s3/settings.h"

namespace trainerd::core::run {

/// dp of the checkpoint that a run of the job would resume from, in its output or durable tier; none if it
/// would begin at step 1. Writes nothing. Throws what the run would throw if the checkpoints cannot be read,
/// or none is intact.
std::optional<std::int64_t> trained_dp(const job::JobSpec& job, const io::FindS3& find_s3);

}  // namespace trainerd::core::run
