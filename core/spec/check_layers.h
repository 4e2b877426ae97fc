#pragma once

#include <string>
#include <vector>

#include "core/job/model_options.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Combinations of layer keys that contradict each other, where each key is valid by itself.
std::vector<KeyProblem> layer_problems(const job::ModelOptions& model);

/// Bias keys that are false although other keys imply them. The caller reports only keys that the job gives.
std::vector<KeyProblem> bias_contradictions(const job::ModelOptions& model);

/// Brings the model's keys to one shortest form, so that equal models have equal options.
void settle_model(job::ModelOptions& model);

}  // namespace trainerd::core::spec
