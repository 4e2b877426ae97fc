#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Combinations of layer keys that contradict each other, where each key is valid by itself.
std::vector<KeyProblem> layer_problems(const job::ModelOptions& model);

/// The same of keys of expert parallelism. The number of experts is valid.
std::vector<KeyProblem> expert_parallel_problems(const job::JobSpec& job);

/// The same of passes that take turns.
std::vector<KeyProblem> turns_problems(const parallel::ParallelOptions& options);
std::vector<KeyProblem> offload_problems(const job::JobSpec& job);

/// Heads that are too large for device: cuda.
std::vector<KeyProblem> cuda_head_problems(const job::ModelOptions& model);

/// Writes what the model's keys say in its one shortest form: equal models have equal options.
void settle_model(job::ModelOptions& model);

}  // namespace trainerd::core::spec
