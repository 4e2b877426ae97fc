#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/job/job.h"
#include "core/train/step_memory.h"
#include "parallel/layout/layout.h"
#include "parallel/schedule/slots.h"

namespace trainerd::core::train {

/// The actions of one rank in a pass over the batch, and their slots. Used by both the executor and the
/// memory planning.
struct PassSchedule {
  std::vector<parallel::Action> actions;
  std::array<parallel::SlotTable, kSlotClasses> slots;
};
/// `pool_of_chunk` is that of the step's memory: see SlotCounts.
PassSchedule pass_schedule(std::int64_t microbatches, const parallel::Layout& layout,
                           std::int64_t pipeline_rank, parallel::Pass pass,
                           std::span<const int> pool_of_chunk);

/// Pools and slots that a pipeline rank needs for the job's training schedules, of each batch size, and for
/// its evaluations.
SlotCounts count_slots(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank);
/// The same for all pipeline ranks, in about the time of one.
std::vector<SlotCounts> count_all_slots(const job::JobSpec& job, const parallel::Layout& layout);

/// By pipeline rank: `SlotCounts::pool_of_chunk`. Jobs that differ only in recompute often have equal pools,
/// and then equal slots.
using Pools = std::vector<std::vector<int>>;
Pools all_pools(const job::JobSpec& job, const parallel::Layout& layout);
/// `pools` must be `all_pools` of the job.
std::vector<SlotCounts> count_all_slots(const job::JobSpec& job, const parallel::Layout& layout,
                                        const Pools& pools);

}  // namespace trainerd::core::train
