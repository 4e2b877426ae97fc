#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Problems of the validation sets and of the evaluation's options. Keys that `bad` already reports are
/// skipped.
std::vector<KeyProblem> evaluation_problems(const job::JobSpec& job, const Problems& bad);

}  // namespace trainerd::core::spec
