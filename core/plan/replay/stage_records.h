#pragma once

#include <memory>
#include <vector>

#include "core/plan/cost/group_places.h"
#include "core/plan/replay/replay.h"
#include "core/rank/record.h"
#include "core/train/step_memory.h"

namespace trainerd::core::plan {

/// The record of each pipeline rank, and its memory.
struct StageRecords {
  std::vector<std::shared_ptr<rank::RankRecord>> of_rank;
  std::vector<kernels::MemoryBudget> memory;
};
/// Pipeline ranks that do the same are recorded once. `slots` are those of count_all_slots.
StageRecords record_all(const job::JobSpec& job, const parallel::Layout& layout,
                        const kernels::Target& target, const std::vector<train::SlotCounts>& slots);

/// For replaying them on the machines of `topology`, which has rates. `groups` and `records` must outlive it.
ReplayInput replay_input(const job::JobSpec& job, const parallel::Topology& topology,
                         const GroupPlaces& groups, const StageRecords& records);

}  // namespace trainerd::core::plan
