#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Problems of `batch` as a whole: of each size of a run's batches, every data-parallel rank has a sequence.
std::vector<KeyProblem> batch_problems(const job::JobSpec& job);

}  // namespace trainerd::core::spec
