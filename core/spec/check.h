#pragma once

#include <optional>

#include "core/job/job.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"

namespace trainerd::core::spec {

/// Fills in defaults that depend on other keys. Then checks what a single field cannot check: required keys,
/// sizes that do not divide, contradictions, values that no code supports yet. `preset` is the source of the
/// model preset, if there is one.
void complete_and_check(job::JobSpec& job, const Places& places, std::optional<int> preset,
                        Problems& problems);

}  // namespace trainerd::core::spec
