#pragma once

#include <functional>

#include "core/train/rank_groups.h"
#include "core/train/rank_page.h"
#include "core/train/step_clock.h"
#include "parallel/comm/observed_communicator.h"
#include "parallel/group/group.h"

namespace trainerd::core::train {

/// The stream whose time the ledger divides.
inline constexpr const char* kComputeStream = "compute";

/// Sees, and may change, a message before it is sent (CommCall::sent).
using ObserveSends =
    std::function<void(kernels::Stream&, const parallel::GroupInfo&, const parallel::CommCall&)>;

/// The rank's groups, wrapped so that the compute stream's time in them is charged to `clock`: as exposed
/// communication of the awaited axis, or as bubble for the wait for a pipeline neighbour. Groups of one rank
/// cost no time, except the link of a rank to its host. `page` (read at each call) shows which group the rank
/// waits for. `sends`, if set at the call, sees what the rank sends. All arguments must outlive the result.
RankGroups clocked(const RankGroups& groups, StepClock& clock, RankPage* const& page,
                   const ObserveSends& sends);

}  // namespace trainerd::core::train
