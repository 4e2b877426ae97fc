#pragma once

#include "core/run/agent/agent.h"

namespace trainerd::core::run {

/// Protects what is not the run's own in its output directory. Call it on the leader, before the directory is
/// touched. Throws SpecError if the job file is the directory's `job.yaml`, which the run replaces by the
/// resolved job, and no run has written it, if the working directory lies in such a directory, or if the
/// directory lies in one whose files are all read as text. With
/// `fresh`, which moves an earlier output aside, also if the directory holds the working directory, the job
/// file or files that the job reads, and DataError if its data cannot be used.
void require_safe_output(const AgentOptions& options);

}  // namespace trainerd::core::run
