#pragma once

#include <functional>

#include "core/train/rank_groups.h"
#include "core/train/rank_page.h"
#include "core/train/step_clock.h"
#include "parallel/comm/observed_communicator.h"
#include "parallel/group/group.h"

namespace trainerd::core::train {

/// Sees a message before it is sent (CommCall::sent), and may change it.
using ObserveSends =
    std::function<void(kernels::Stream&, const parallel::GroupInfo&, const parallel::CommCall&)>;

/// The groups of a rank, with `clock` charged for what the compute stream spends on them: exposed
/// communication of the axis that was awaited, but the wait for a pipeline neighbour is bubble. A group of
/// one is free. `page`, as it is at each call, shows which group the rank waits for; `sends`, if it is not
/// empty then, sees what the rank sends. All outlive the result.
RankGroups clocked(const RankGroups& groups, StepClock& clock, RankPage* const& page,
                   const ObserveSends& sends);

}  // namespace trainerd::core::train
