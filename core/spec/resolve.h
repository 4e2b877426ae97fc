#pragma once

#include "core/spec/problems.h"
#include "core/spec/read.h"
#include "core/spec/spec.h"

namespace trainerd::core::spec {

/// Resolves `device: auto` and `dp: auto` (kAutomatic) for this machine. Must run before the job is checked.
void resolve_automatic(job::JobSpec& job, const Places& places, const Surroundings& around,
                       Problems& problems);

}  // namespace trainerd::core::spec
