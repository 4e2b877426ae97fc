#pragma once

#include <cstdint>

#include "core/job/job.h"

namespace trainerd::core::run {

/// Whether the job has an evaluation after step `step`.
bool evaluation_due(const job::JobSpec& job, std::int64_t step);

/// Global batches of an evaluation: those that the job asks for, or all whole ones that `samples` of
/// validation data hold. Throws DataError when they hold none.
std::int64_t evaluation_batches(const job::JobSpec& job, std::int64_t samples);

}  // namespace trainerd::core::run
