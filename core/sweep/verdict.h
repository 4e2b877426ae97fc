#pragma once

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Plans every job of the sweep that its keys have not refused, as `trainerd plan` does, and refuses those
/// that do not fit: this machine, of which each of the jobs at once has its share of memory and CUDA devices,
/// or under Slurm the cluster that the job names. `cuda_devices` are this machine's.
void plan_jobs(Sweep& sweep, std::int64_t cuda_devices);

/// The jobs with the planner's verdict, for people.
std::string dry_table(const Sweep& sweep);

}  // namespace trainerd::core::sweep
