#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Problems of `supervise` keys that contradict each other.
std::vector<KeyProblem> supervise_problems(const job::JobSpec& job);

}  // namespace trainerd::core::spec
