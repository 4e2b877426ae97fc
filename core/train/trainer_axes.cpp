// What the chunks of a trainer need to know of the axes of parallelism.

#include "core/train/trainer.h"

namespace trainerd::core::train {

parallel::ContextParallel Trainer::context_parallel() const {
  using parallel::ContextComm;
  const parallel::ParallelOptions& o = layout_.options;
  const bool divides = model::heads_divide(job_.model, o.tp, o.cp);
  return {
      .group = groups_.cp(),
      .by_heads = o.cp_comm == ContextComm::all_to_all || (o.cp_comm == ContextComm::automatic && divides)};
}

parallel::ExpertParallel Trainer::expert_parallel() const {
  if (groups_.ep() == nullptr) return {};
  return {.group = groups_.ep(),
          .rows = model::expert_rows(job_.model, shape_.tokens(), layout_.options.ep,
                                     layout_.options.ep_capacity)};
}

}  // namespace trainerd::core::train
