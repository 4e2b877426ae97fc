#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// What does not go with pairs of answers (loss.dpo), and pairs without it.
std::vector<KeyProblem> preference_problems(const job::JobSpec& job);

}  // namespace trainerd::core::spec
