#pragma once

#include "core/spec/spec.h"
#include "parallel/layout.h"
#include "parallel/shm/shm_world.h"

namespace trainerd::core {

/// What the ranks of a job share on one node: every group of its layout, sized for what it moves. Agent and workers work it
/// out alike.
parallel::ShmLayout shared_memory_layout(const JobSpec& job, const parallel::Layout& layout);

}  // namespace trainerd::core
