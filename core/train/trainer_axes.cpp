// What the chunks of a trainer need to know of the axes of parallelism.

#include <algorithm>

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
  const parallel::ParallelOptions& o = layout_.options;
  const std::int64_t tokens = shape_.tokens();
  parallel::ExpertParallel ep{
      .group = groups_.ep(),
      .rows = model::expert_rows(job_.model, tokens, o.ep, o.ep_capacity),
      .slots = model::expert_slots(job_.model, tokens, o.ep, o.ep_capacity, o.ep_comm),
      .overlap = o.overlap_ep};
  ep.rows = std::min(ep.rows, ep.received(tokens) * job_.model.experts.per_token);
  return ep;
}

}  // namespace trainerd::core::train
