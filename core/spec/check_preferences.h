#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Keys that do not work with pairs of answers (loss.dpo), and pairs without loss.dpo.
std::vector<KeyProblem> preference_problems(const job::JobSpec& job);

}  // namespace trainerd::core::spec
