#pragma once

#include <vector>

#include "core/job/job.h"
#include "core/spec/check_masks.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Sets the keys that the job leaves out and whose default depends on the update rule.
void derive_optimizer(job::OptimizerOptions& options, const Given& given);

/// Learning rates and lengths of the schedule that do not go together. Looks at keys without another problem.
std::vector<KeyProblem> optimizer_problems(const job::JobSpec& job, const Problems& problems);

}  // namespace trainerd::core::spec
