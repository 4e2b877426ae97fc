#pragma once

#include "core/train/rank_groups.h"
#include "core/train/rank_page.h"
#include "core/train/step_clock.h"

namespace trainerd::core::train {

/// The groups of a rank, with `clock` charged for what the compute stream spends on them: exposed
/// communication of the axis that was awaited, but the wait for a pipeline neighbour is bubble. A group of
/// one is free. `page`, as it is at each call, shows which group the rank waits for. All outlive the result.
RankGroups clocked(const RankGroups& groups, StepClock& clock, RankPage* const& page);

}  // namespace trainerd::core::train
