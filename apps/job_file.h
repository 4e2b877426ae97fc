#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/surroundings.h"
#include "kernels/base/error.h"
#include "parallel/layout/topology.h"

namespace trainerd::apps {

/// Reads a job with this process' environment, this machine's devices and the existing checkpoints. Choices
/// that may be unexpected are reported on standard error.
core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides);
/// The same with the given surroundings.
core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides,
                            core::spec::Surroundings around);
/// The surroundings of this process and machine.
core::spec::Surroundings surroundings_here();
/// With `--dry`, if Slurm did not answer: uses this machine instead of Slurm's nodes and reports `error`.
core::spec::Machine this_machine_for_slurm(const base::SpecError& error);
/// Prints a line to standard error.
void say(const std::string& line);

/// core::spec::job_topology. If `calibrate_seconds` is not empty, with this machine's rates, measured now for
/// that many seconds.
parallel::Topology machines_of(const core::job::JobSpec& job, const std::string& calibrate_seconds);

}  // namespace trainerd::apps
