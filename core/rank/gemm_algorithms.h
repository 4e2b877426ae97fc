#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::rank {

/// The distinct GEMMs of a step over all ranks of the layout, recorded in the meta world. (Only the first and
/// last rank of a tp group are recorded: padding and replicated heads cause no other GEMMs.)
std::vector<kernels::OpClass> gemms_of_all_ranks(const job::JobSpec& job, const parallel::Layout& layout,
                                                 const kernels::Target& target);

/// Returns rank 0's text on every rank. A collective call; allocates device memory and releases it.
std::string share_text(const std::string& text, kernels::Backend& backend, parallel::Communicator& world);

}  // namespace trainerd::core::rank
