#pragma once

#include <memory>

#include "core/run/wire/messages.h"
#include "core/run/worker/rank_world.h"

namespace trainerd::core::run {

/// Makes a worker's connections to the other ranks, from its `Start` and its shared memory.
std::unique_ptr<RankWorld> make_world(const job::JobSpec& job, const Start& start,
                                      const parallel::Topology& topology, base::UniqueFd shared,
                                      base::UniqueFd flights);

}  // namespace trainerd::core::run
