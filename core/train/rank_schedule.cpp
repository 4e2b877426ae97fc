#include "core/train/rank_schedule.h"

#include <algorithm>
#include <utility>

#include "core/model/recompute.h"

namespace trainerd::core::train {

using parallel::ActionKind;
using parallel::Lifetime;
using parallel::Pass;

namespace {

std::array<parallel::SlotTable, kSlotClasses> color(const std::vector<parallel::Action>& actions,
                                                    const parallel::ScheduleShape& shape,
                                                    std::span<const int> pool_of_chunk, bool offloads) {
  const auto lifetime = [&](Lifetime l) { return parallel::color_slots(actions, shape, pool_of_chunk, l); };
  const parallel::SlotTable to_backward = lifetime(Lifetime::forward_to_backward);
  return {to_backward,
          lifetime(Lifetime::forward_to_weight),
          lifetime(Lifetime::backward_to_weight),
          parallel::color_receives(actions, shape, ActionKind::recv_forward),
          parallel::color_receives(actions, shape, ActionKind::recv_backward),
          offloads ? to_backward : parallel::SlotTable{}};
}

/// Approximate size of what a chunk keeps of a microbatch, in units of a layer's input: 17 per layer
/// (Korthikanti et al., 2022, equation 1, without attention scores), or 1 with full recompute. Embedding and
/// head add only a few, less than a separate pool would take.
std::int64_t kept_of(const job::RecomputeOptions& recompute, const parallel::ChunkSpan& span) {
  std::int64_t kept = 0;
  for (std::int64_t layer = span.first_layer; layer < span.first_layer + span.layers; ++layer)
    kept += model::recompute_of(recompute, layer) == job::RecomputeKind::full ? 1 : 17;
  return kept;
}

std::vector<int> pools_of(const job::JobSpec& job, const parallel::Layout& layout,
                          std::int64_t pipeline_rank) {
  std::vector<std::int64_t> kept;
  for (const parallel::ChunkSpan& span : parallel::chunks_of(layout, pipeline_rank))
    kept.push_back(kept_of(job.recompute, span));
  return parallel::slot_pools(parallel::schedule_shape(layout.options, job.microbatches()),
                              static_cast<int>(pipeline_rank), kept);
}

/// The different numbers of microbatches and kinds of passes of a run.
std::vector<std::pair<std::int64_t, Pass>> passes_of(const job::JobSpec& job) {
  std::vector<std::pair<std::int64_t, Pass>> passes{{job.microbatches(), Pass::evaluate}};
  for (const std::int64_t global : job.batch.sizes()) {
    const std::pair one{job.microbatches(global), Pass::train};
    if (std::find(passes.begin(), passes.end(), one) == passes.end()) passes.push_back(one);
  }
  return passes;
}

SlotCounts none_yet(std::vector<int> pool_of_chunk) {
  const auto pools =
      1 + static_cast<std::size_t>(*std::max_element(pool_of_chunk.begin(), pool_of_chunk.end()));
  return {std::move(pool_of_chunk), std::vector<std::array<int, kSlotClasses>>(pools)};
}

void take_larger(SlotCounts& counts, const std::array<parallel::SlotTable, kSlotClasses>& tables) {
  for (std::size_t i = 0; i < kSlotClasses; ++i)
    for (std::size_t pool = 0; pool < tables[i].slots.size(); ++pool)
      counts.of_pool[pool][i] = std::max(counts.of_pool[pool][i], tables[i].slots[pool]);
}

}  // namespace

PassSchedule pass_schedule(std::int64_t microbatches, const parallel::Layout& layout,
                           std::int64_t pipeline_rank, Pass pass, std::span<const int> pool_of_chunk) {
  const parallel::ScheduleShape shape = parallel::schedule_shape(layout.options, microbatches, pass);
  PassSchedule schedule;
  schedule.actions = parallel::make_schedule(shape, static_cast<int>(pipeline_rank));
  schedule.slots = color(schedule.actions, shape, pool_of_chunk, layout.options.offload_activations);
  return schedule;
}

SlotCounts count_slots(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank) {
  SlotCounts counts = none_yet(pools_of(job, layout, pipeline_rank));
  for (const auto& [microbatches, pass] : passes_of(job))
    take_larger(counts, pass_schedule(microbatches, layout, pipeline_rank, pass, counts.pool_of_chunk).slots);
  return counts;
}

Pools all_pools(const job::JobSpec& job, const parallel::Layout& layout) {
  Pools pools;
  for (std::int64_t rank = 0; rank < layout.options.pp; ++rank) pools.push_back(pools_of(job, layout, rank));
  return pools;
}

std::vector<SlotCounts> count_all_slots(const job::JobSpec& job, const parallel::Layout& layout) {
  return count_all_slots(job, layout, all_pools(job, layout));
}

std::vector<SlotCounts> count_all_slots(const job::JobSpec& job, const parallel::Layout& layout,
                                        const Pools& pools) {
  std::vector<SlotCounts> all;
  for (const std::vector<int>& pool_of_chunk : pools) all.push_back(none_yet(pool_of_chunk));
  for (const auto& [microbatches, pass] : passes_of(job)) {
    const parallel::ScheduleShape shape = parallel::schedule_shape(layout.options, microbatches, pass);
    const auto lists = parallel::make_schedules(shape);
    for (std::size_t rank = 0; rank < lists.size(); ++rank)
      take_larger(all[rank],
                  color(lists[rank], shape, all[rank].pool_of_chunk, layout.options.offload_activations));
  }
  return all;
}

}  // namespace trainerd::core::train
