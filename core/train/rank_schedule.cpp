#include "core/train/rank_schedule.h"

#include <algorithm>

namespace trainerd::core {

using parallel::ActionKind;
using parallel::Lifetime;
using parallel::Pass;

PassPlan plan_pass(const JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank, Pass pass) {
  const int stages = static_cast<int>(layout.options.pp), microbatches = static_cast<int>(job.microbatches());
  PassPlan plan;
  plan.actions = parallel::make_schedule({.kind = layout.options.schedule, .stages = stages,
                                          .virtual_stages = static_cast<int>(layout.options.virtual_stages),
                                          .microbatches = microbatches, .pass = pass},
                                         static_cast<int>(pipeline_rank));
  for (int i = 0; i < static_cast<int>(layout.options.virtual_stages); ++i) {
    const int chunk = i * stages + static_cast<int>(pipeline_rank);
    const auto lifetime = [&](Lifetime l) { return parallel::color_slots(plan.actions, chunk, microbatches, l); };
    plan.slots.push_back({lifetime(Lifetime::forward_to_backward), lifetime(Lifetime::forward_to_weight),
                          lifetime(Lifetime::backward_to_weight),
                          parallel::color_receives(plan.actions, chunk, microbatches, ActionKind::recv_forward),
                          parallel::color_receives(plan.actions, chunk, microbatches, ActionKind::recv_backward)});
  }
  return plan;
}

SlotCounts count_slots(const JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank) {
  SlotCounts counts(static_cast<std::size_t>(layout.options.virtual_stages));
  for (const Pass pass : {Pass::train, Pass::evaluate}) {
    const PassPlan plan = plan_pass(job, layout, pipeline_rank, pass);
    for (std::size_t chunk = 0; chunk < counts.size(); ++chunk)
      for (std::size_t i = 0; i < kSlotClasses; ++i) counts[chunk][i] = std::max(counts[chunk][i], plan.slots[chunk][i].slots);
  }
  return counts;
}

}  // namespace trainerd::core
