#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::rank {

/// The GEMMs of a step, each once, of all ranks of the layout: recorded in the meta world. (Of the ranks of a
/// tp group the first and the last are asked: padding and replicated heads make no others.)
std::vector<kernels::OpClass> gemms_of_all_ranks(const job::JobSpec& job, const parallel::Layout& layout,
                                                 const kernels::Target& target);

/// Rank 0's text on every rank. Takes device memory and gives it back; waits for the others.
std::string share_text(const std::string& text, kernels::Backend& backend, parallel::Communicator& world);

}  // namespace trainerd::core::rank
