#pragma once

#include <vector>

#include "core/job/train_options.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Data types that do not go together, and loss scales.
std::vector<KeyProblem> precision_problems(const job::PrecisionRecipe& recipe);

}  // namespace trainerd::core::spec
