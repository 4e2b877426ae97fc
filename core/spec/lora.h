#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/field_table.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Adds the keys of the section `lora`.
void add_lora(FieldTable& t, job::LoraOptions& lora);

/// Replaces `all-linear` by the names of all projections, in the order of the layer and without duplicates,
/// and sets the default of alpha. Returns problems. Does nothing without adapters.
std::vector<KeyProblem> complete_lora(job::JobSpec& job);

}  // namespace trainerd::core::spec
