#pragma once

#include <string>
#include <vector>

#include "core/job/model_options.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Combinations of layer keys that contradict each other, where each key is valid by itself.
std::vector<KeyProblem> layer_problems(const job::ModelOptions& model);

/// Writes what the model's keys say in its one shortest form: equal models have equal options.
void settle_model(job::ModelOptions& model);

}  // namespace trainerd::core::spec
