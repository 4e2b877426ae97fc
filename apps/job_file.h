#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/surroundings.h"
#include "kernels/base/error.h"
#include "parallel/layout/topology.h"

namespace trainerd::apps {

/// The job of a file as this process and this machine see it: with its environment, its devices and the
/// checkpoints that are there. What was chosen and may surprise is a line on standard error.
core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides);
/// As other surroundings have it.
core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides,
                            core::spec::Surroundings around);
/// Of this process and this machine.
core::spec::Surroundings surroundings_here();
/// This machine in place of Slurm's nodes, for `--dry` where Slurm did not answer; says so with its error.
core::spec::Machine this_machine_for_slurm(const base::SpecError& error);
/// A line on standard error.
void say(const std::string& line);

/// core::spec::job_topology; with this machine's own rates, measured now, where `calibrate_seconds` is a
/// number of seconds to do that for.
parallel::Topology machines_of(const core::job::JobSpec& job, const std::string& calibrate_seconds);

}  // namespace trainerd::apps
