#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/target/target.h"
#include "parallel/comm/communicator.h"
#include "parallel/group/group.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::rank {

// Memory and collectives of a rank's parameters alone, from the trainer's own ParamStore in the meta world.
// `record_rank` also records the rest of the step and takes much longer.

/// Bytes of parameters, gradients, master weights and optimizer state, without prepared forms and the
/// alignment between arrays.
std::int64_t param_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                         const kernels::Target& target);

/// The slices of logical tensors that the rank saves in a checkpoint (train::Snapshot), in order.
std::vector<io::TensorSlice> saved_slices(const job::JobSpec& job, const parallel::Layout& layout,
                                          std::int64_t rank, const kernels::Target& target);

struct ParamCollective {
  parallel::Group group = parallel::Group::dp;
  parallel::OpKind kind = parallel::OpKind::barrier;
  std::int64_t bytes = 0;  ///< as in parallel::MetaCollective
};
/// The collectives of one step: gradient reductions, then gathers of gradients and of updated parameters.
/// Norms and biases are left out, because their units may span several layers.
std::vector<ParamCollective> param_collectives(const job::JobSpec& job, const parallel::Layout& layout,
                                               std::int64_t rank, const kernels::Target& target);

}  // namespace trainerd::core::rank
