#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/train/batch_source.h"
#include "parallel/layout/options.h"

namespace trainerd::core::train {

// The step that ranks compute at each start before the first one, with no update (job::has_canary).

/// Ranks that share a microbatch's rows between layers: its tokens are a multiple of them.
std::int64_t row_shares(const parallel::ParallelOptions& options);

/// The shape of its microbatches: one sequence of few tokens for replica 0, so that the start is short.
/// `step` is the shape of the job's own steps.
BatchShape canary_shape(const BatchShape& step, const parallel::ParallelOptions& options,
                        kernels::GemmFormat format);

/// A job whose steps have the size of that step.
job::JobSpec canary_job(const job::JobSpec& job);

}  // namespace trainerd::core::train
