#pragma once

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Plans every job that is not refused yet, like `trainerd plan`, and refuses those that do not fit. They
/// must fit their share of this machine's memory and CUDA devices (`cuda_devices`), or under Slurm the
/// cluster that the job names.
void plan_jobs(Sweep& sweep, std::int64_t cuda_devices);

/// A human-readable table of the jobs with the planner's verdict.
std::string dry_table(const Sweep& sweep);

}  // namespace trainerd::core::sweep
