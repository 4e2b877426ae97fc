#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Of addresses of metrics and trackers. Those whose keys are wrong by themselves, which `bad` says, are left
/// out.
std::vector<KeyProblem> metrics_problems(const job::JobSpec& job, const Problems& bad);

}  // namespace trainerd::core::spec
