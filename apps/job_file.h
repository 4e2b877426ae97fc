#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/surroundings.h"
#include "parallel/layout/topology.h"

namespace trainerd::apps {

/// The job of a file as this process and this machine see it: with its environment, its devices and the
/// checkpoints that are there. What was chosen and may surprise is a line on standard error.
core::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides);
/// As other surroundings have it.
core::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides,
                       core::Surroundings around);
/// Of this process and this machine.
core::Surroundings surroundings_here();
/// A line on standard error.
void say(const std::string& line);

/// core::job_topology; with this machine's own rates, measured now, where `calibrate_seconds` is a number of
/// seconds to do that for.
parallel::Topology machines_of(const core::JobSpec& job, const std::string& calibrate_seconds);

}  // namespace trainerd::apps
