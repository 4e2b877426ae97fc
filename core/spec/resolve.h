#pragma once

#include "core/spec/problems.h"
#include "core/spec/read.h"
#include "core/spec/spec.h"

namespace trainerd::core::spec {

/// Whether `resolve_automatic` may ask what the machine has.
bool asks_for_machine(const job::JobSpec& job);

/// Puts what this machine has in place of `device: auto` and `dp: auto` (kAutomatic): before the job is
/// checked.
void resolve_automatic(job::JobSpec& job, const Places& places, const Surroundings& around,
                       Problems& problems);

}  // namespace trainerd::core::spec
