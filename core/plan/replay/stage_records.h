#pragma once

#include <memory>
#include <vector>

#include "core/plan/cost/group_places.h"
#include "core/plan/replay/replay.h"
#include "core/rank/record.h"
#include "core/train/step_memory.h"

namespace trainerd::core::plan {

/// Record, counts and memory of each pipeline rank.
struct StageRecords {
  std::vector<std::shared_ptr<rank::RankRecord>> of_rank;
  std::vector<rank::ActionCounts> counts;
  std::vector<kernels::MemoryBudget> memory;
};
/// Records all pipeline ranks. Ranks that do the same are recorded once. `slots` is from count_all_slots.
StageRecords record_all(const job::JobSpec& job, const parallel::Layout& layout,
                        const kernels::Target& target, const std::vector<train::SlotCounts>& slots);

/// Input to replay the records on the machines of `topology`, which must have rates. `groups` and `records`
/// must outlive it.
ReplayInput replay_input(const job::JobSpec& job, const parallel::Topology& topology,
                         const GroupPlaces& groups, const StageRecords& records);

}  // namespace trainerd::core::plan
