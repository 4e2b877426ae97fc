#include "core/train/rank_schedule.h"

#include <algorithm>
#include <utility>

namespace trainerd::core {

using parallel::ActionKind;
using parallel::Lifetime;
using parallel::Pass;

namespace {

/// By chunk of the rank.
std::vector<std::array<parallel::SlotTable, kSlotClasses>> color(const std::vector<parallel::Action>& actions,
                                                                 const parallel::ScheduleShape& shape, int pipeline_rank) {
  std::vector<std::array<parallel::SlotTable, kSlotClasses>> slots;
  parallel::ReceiveSlots inputs = parallel::color_receives(actions, shape, ActionKind::recv_forward);
  parallel::ReceiveSlots grads = parallel::color_receives(actions, shape, ActionKind::recv_backward);
  for (int i = 0; i < shape.virtual_stages; ++i) {
    const int chunk = i * shape.stages + pipeline_rank;
    const auto lifetime = [&](Lifetime l) { return parallel::color_slots(actions, chunk, shape.microbatches, l); };
    const auto received = [&](parallel::ReceiveSlots& r) {
      return parallel::SlotTable{std::move(r.slot_of_microbatch[static_cast<std::size_t>(i)]), i == 0 ? r.slots : 0};
    };
    slots.push_back({lifetime(Lifetime::forward_to_backward), lifetime(Lifetime::forward_to_weight),
                     lifetime(Lifetime::backward_to_weight), received(inputs), received(grads)});
  }
  return slots;
}

void take_larger(SlotCounts& counts, const std::vector<std::array<parallel::SlotTable, kSlotClasses>>& slots) {
  for (std::size_t chunk = 0; chunk < counts.size(); ++chunk)
    for (std::size_t i = 0; i < kSlotClasses; ++i) counts[chunk][i] = std::max(counts[chunk][i], slots[chunk][i].slots);
}

}  // namespace

PassPlan plan_pass(const JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank, Pass pass) {
  const parallel::ScheduleShape shape = parallel::schedule_shape(layout.options, job.microbatches(), pass);
  PassPlan plan;
  plan.actions = parallel::make_schedule(shape, static_cast<int>(pipeline_rank));
  plan.slots = color(plan.actions, shape, static_cast<int>(pipeline_rank));
  return plan;
}

SlotCounts count_slots(const JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank) {
  SlotCounts counts(static_cast<std::size_t>(layout.options.virtual_stages));
  for (const Pass pass : {Pass::train, Pass::evaluate}) take_larger(counts, plan_pass(job, layout, pipeline_rank, pass).slots);
  return counts;
}

std::vector<SlotCounts> count_all_slots(const JobSpec& job, const parallel::Layout& layout) {
  std::vector<SlotCounts> all(static_cast<std::size_t>(layout.options.pp),
                              SlotCounts(static_cast<std::size_t>(layout.options.virtual_stages)));
  for (const Pass pass : {Pass::train, Pass::evaluate}) {
    const parallel::ScheduleShape shape = parallel::schedule_shape(layout.options, job.microbatches(), pass);
    const auto lists = parallel::make_schedules(shape);
    for (std::size_t rank = 0; rank < lists.size(); ++rank) take_larger(all[rank], color(lists[rank], shape, static_cast<int>(rank)));
  }
  return all;
}

}  // namespace trainerd::core
