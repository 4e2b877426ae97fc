#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/job/job.h"
#include "core/train/step_memory.h"
#include "parallel/layout/layout.h"
#include "parallel/schedule/slots.h"

namespace trainerd::core::train {

/// What one rank does in a pass over the batch, and in which slots: read alike by the executor and the memory
/// schedule.
struct PassSchedule {
  std::vector<parallel::Action> actions;
  std::array<parallel::SlotTable, kSlotClasses> slots;
};
/// `pool_of_chunk` is that of the memory it runs in: see SlotCounts.
PassSchedule pass_schedule(const job::JobSpec& job, const parallel::Layout& layout,
                           std::int64_t pipeline_rank, parallel::Pass pass,
                           std::span<const int> pool_of_chunk);

/// Pools and slots that the job's training and evaluation schedules need on a pipeline rank.
SlotCounts count_slots(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank);
/// The same of every pipeline rank, in about the time of one.
std::vector<SlotCounts> count_all_slots(const job::JobSpec& job, const parallel::Layout& layout);

/// By pipeline rank, `SlotCounts::pool_of_chunk`. Jobs that differ in what they recompute alone often have
/// the same, and then the same slots.
using Pools = std::vector<std::vector<int>>;
Pools all_pools(const job::JobSpec& job, const parallel::Layout& layout);
/// `pools` is `all_pools` of the job.
std::vector<SlotCounts> count_all_slots(const job::JobSpec& job, const parallel::Layout& layout,
                                        const Pools& pools);

}  // namespace trainerd::core::train
