#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/field_table.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// The keys of the section `lora`.
void add_lora(FieldTable& t, job::LoraOptions& lora);

/// Puts the names of all projections for `all-linear`, each once and in the order of the layer, and the
/// default of alpha, and returns what is wrong. Nothing is done without adapters.
std::vector<KeyProblem> complete_lora(job::JobSpec& job);

}  // namespace trainerd::core::spec
