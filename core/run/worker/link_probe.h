#pragma once

#include <cstdint>
#include <vector>

#include "core/run/preflight/preflight.h"
#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"

namespace trainerd::core::run {

/// Measures the links between this rank and those of the same place on the next and the previous node, which
/// form a ring: of a pair of nodes all places at once, as in training, and a node is in one pair at a time.
/// All ranks of `world` call it together. Gives the links to the next node, which this rank has timed; none
/// of a job of one node. It takes 12 messages of 4 bytes and 8 of 1 MiB on each link. Throws CommError.
std::vector<LinkTime> probe_links(kernels::Backend& backend, parallel::Communicator& world,
                                  std::int64_t ranks_per_node);

}  // namespace trainerd::core::run
