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
  const parallel::ParallelOptions& o = layout_.options;
  const bool own_tokens = o.whole_experts();
  if (groups_.ep() == nullptr) return {.own_tokens = own_tokens};
  const std::int64_t tokens = own_tokens ? shape_.tokens() / o.tp : shape_.tokens();
  parallel::ExpertParallel ep{
      .group = groups_.ep(),
      .rows = model::expert_rows(job_.model, tokens, o.ep, o.ep_capacity),
      .slots = model::expert_slots(job_.model, tokens, o.ep, o.ep_capacity, o.ep_comm),
      .overlap = o.overlap_ep,
      .own_tokens = own_tokens};
  ep.rows = std::min(ep.rows, ep.received(tokens) * job_.model.experts.per_token);
  return ep;
}

}  // namespace trainerd::core::train
