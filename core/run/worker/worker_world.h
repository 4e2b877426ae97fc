#pragma once

#include <memory>

#include "core/run/wire/messages.h"
#include "core/run/worker/rank_world.h"

namespace trainerd::core::run {

/// How a worker reaches the other ranks, by what its start says and by the memory that it got.
std::unique_ptr<RankWorld> make_world(const job::JobSpec& job, const Start& start,
                                      const parallel::Topology& topology, base::UniqueFd shared,
                                      base::UniqueFd flights);

}  // namespace trainerd::core::run
