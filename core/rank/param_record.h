#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "kernels/target/target.h"
#include "parallel/comm/communicator.h"
#include "parallel/group/group.h"
#include "parallel/layout/layout.h"

namespace trainerd::core {

// What a rank's parameters do by themselves, from the store that the trainer holds them in. Much faster than
// `record_rank`, whose record has the same and all else.

/// Bytes of parameters, gradients, master weights and the optimizer's states; without prepared forms and the
/// alignment between arrays.
std::int64_t param_bytes(const JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                         const kernels::Target& target);

struct ParamCollective {
  parallel::Group group = parallel::Group::dp;
  parallel::OpKind kind = parallel::OpKind::barrier;
  std::int64_t bytes = 0;  ///< as in parallel::MetaCollective
};
/// The collectives of a step over all parameters but vectors (norms and biases), which units of several
/// layers may share: the reductions of gradients, and what is gathered after them and after the update.
std::vector<ParamCollective> param_collectives(const JobSpec& job, const parallel::Layout& layout,
                                               std::int64_t rank, const kernels::Target& target);

}  // namespace trainerd::core
