#pragma once

#include <optional>

#include "core/job/job.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"

namespace trainerd::core::spec {

/// Fills in the defaults that depend on other keys, then checks what no single field can: required keys,
/// sizes that do not divide, contradictions, values that no code honours yet. `preset` is the source of the
/// model preset, if there is one.
void complete_and_check(job::JobSpec& job, const Places& places, std::optional<int> preset,
                        Problems& problems);

}  // namespace trainerd::core::spec
