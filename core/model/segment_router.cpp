#include "core/model/segment_router.h"

#include "parallel/tensor/flow.h"

namespace trainerd::core::model {

using namespace kernels;

namespace {

RouterScore score_of(const job::ModelOptions& m) {
  return m.experts.score == job::RouterScore::sigmoid ? RouterScore::sigmoid : RouterScore::softmax;
}

}  // namespace

Tensor of_choices(const WalkContext& c, Arena& arena, DType dtype, Tokens tokens) {
  const std::int64_t own = routed_tokens(c), count = tokens == Tokens::received ? c.ep.received(own) : own;
  return arena.take(dtype, {count, c.model.experts.per_token}, MemoryTerm::activations);
}

void take_routes(const WalkContext& c, Arena& arena, SegmentState& state) {
  const std::int64_t experts = c.model.experts.count;
  state.probs_TE = arena.take(DType::f32, {routed_tokens(c), experts}, MemoryTerm::activations);
  state.expert_TK = of_choices(c, arena, DType::i32, Tokens::own);
  state.weight_TK = of_choices(c, arena, DType::f32, Tokens::received);
  state.row_TK = of_choices(c, arena, DType::i32, Tokens::received);
  state.source_R = arena.take(DType::i32, {rows_of_microbatch(c)}, MemoryTerm::activations);
  state.first_E = arena.take(DType::i32, {experts / c.ep.ranks() + 1}, MemoryTerm::activations);
  if (c.ep.slots == 0) return;
  state.slots.slot_TK = of_choices(c, arena, DType::i32, Tokens::own);
  state.slots.source_NS = arena.take(DType::i32, {c.ep.ranks(), c.ep.slots}, MemoryTerm::activations);
}

void route(const WalkContext& c, const LayerParams& ids, const SegmentState& state, const Tensor& x_TD) {
  Arena& scratch = c.stream.scratch();
  const ArenaScope scope(scratch);
  const Tensor logits_TE = scratch.take(c.dtype, state.probs_TE.shape, MemoryTerm::activations);
  const Lease router = c.params.use(ids.router, WeightForm::fprop, c.stream);
  const Lease added = c.params.use(ids.logit_bias, WeightForm::plain, c.stream);
  c.backend().linear_fprop(c.stream, {.x_TC = x_TD,
                                      .weight = router.weight(),
                                      .bias_N = added.tensor(),
                                      .addend_TN = {},
                                      .y_TN = logits_TE});
  const Lease bias = c.params.use(ids.router_bias, WeightForm::plain, c.stream);
  const bool alone = c.ep.ranks() == 1;
  const Tensor weight_TK = alone ? state.weight_TK : of_choices(c, scratch, DType::f32, Tokens::own);
  c.backend().route_forward(c.stream, {.logits_TE = logits_TE,
                                       .score = score_of(c.model),
                                       .bias_E = bias.tensor(),
                                       .groups = c.model.experts.groups,
                                       .top_groups = c.model.experts.top_groups,
                                       .normalise = c.model.experts.normalise,
                                       .factor = static_cast<float>(c.model.experts.scale),
                                       .real_T = of_routed(c, c.batch.real_T),
                                       .probs_TE = state.probs_TE,
                                       .expert_TK = state.expert_TK,
                                       .weight_TK = weight_TK});
  const std::int64_t of_rank = c.model.experts.count / c.ep.ranks();
  Tensor expert_TK = state.expert_TK;
  if (!alone) {
    expert_TK = of_choices(c, scratch, DType::i32, Tokens::received);
    parallel::send_choices(c.ep, c.backend(), c.stream, {state.expert_TK, weight_TK}, state.slots, of_rank,
                           c.batch.crowded, c.batch.crowded_value, {expert_TK, state.weight_TK});
  }
  c.backend().sort_experts(c.stream, {.expert_TK = expert_TK,
                                      .first_expert = c.ep.rank() * of_rank,
                                      .first_E = state.first_E,
                                      .source_R = state.source_R,
                                      .row_TK = state.row_TK,
                                      .flag = alone ? Tensor{} : c.batch.crowded,
                                      .flag_value = c.batch.crowded_value});
}

void count_routes(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  if (!c.batch.expert_counts.defined() || !routes_once(c)) return;
  c.backend().count_experts(c.stream, {.expert_TK = state.expert_TK,
                                       .count_BE = c.batch.expert_counts.rows(ids.index, 1),
                                       .mode = WriteMode::accumulate});
}

void route_backward(const WalkContext& c, const SegmentState& state, const Tensor& dweight_TK,
                    const LossTarget& loss) {
  RouteBackward a{.probs_TE = state.probs_TE,
                  .expert_TK = state.expert_TK,
                  .score = score_of(c.model),
                  .normalise = c.model.experts.normalise,
                  .factor = static_cast<float>(c.model.experts.scale),
                  .dweight_TK = dweight_TK,
                  .dlogits_TE = state.dlogits_TE,
                  .count_BE = {},
                  .loss_weight_T = {}};
  const ArenaScope scope(c.stream.scratch());
  if (loss.expert_balance > 0 && routes_once(c)) {
    const std::int64_t experts = c.model.experts.count,
                       ranks = c.cp.group != nullptr ? c.cp.group->size() : 1;
    a.count_BE = c.stream.scratch().take(DType::f32, {c.batch.samples, experts}, MemoryTerm::activations);
    a.loss_weight_T = of_routed(c, c.batch.loss_weight_T);
    a.range = {.chunks = ranks > 1 ? 2 : 1, .first = first_routed(c), .all = c.batch.tokens()};
    a.loss_scale = loss.loss_scale;
    a.balance = loss.expert_balance * loss.grad_scale * static_cast<float>(experts);
    c.backend().count_experts(c.stream,
                              {.expert_TK = state.expert_TK, .count_BE = a.count_BE, .range = a.range});
    if (c.ep.own_tokens) parallel::sum_over(c.tp, c.stream, a.count_BE, "expert_counts");
    parallel::sum_over_context(c.cp, c.stream, a.count_BE);
    a.loss_T = c.stream.scratch().take(DType::f32, {routed_tokens(c)}, MemoryTerm::activations);
  }
  c.backend().route_backward(c.stream, a);
  if (a.loss_T.defined())
    c.backend().ordered_sum(c.stream,
                            {.x = a.loss_T, .out = loss.balance_sum, .mode = WriteMode::accumulate});
}

void router_input_gradient(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                           const Tensor& dx_TD) {
  const Lease router = c.params.use(ids.router, WeightForm::dgrad, c.stream);
  c.backend().linear_dgrad(
      c.stream,
      {.dy_TN = state.dlogits_TE, .weight = router.weight(), .dx_TC = dx_TD, .mode = WriteMode::accumulate});
}

void router_gradient(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                     const Tensor& x_TD) {
  LinearWgrad a{.dy_TN = state.dlogits_TE,
                .x_TC = x_TD,
                .dweight_NC = c.params.grad(ids.router),
                .dbias_N = {},
                .mode = c.params.grad_mode(ids.router)};
  if (ids.logit_bias != kNoParam) {
    a.dbias_N = c.params.grad(ids.logit_bias);
    base::check(c.params.grad_mode(ids.logit_bias) == a.mode, "a router gets its gradients together");
  }
  c.backend().linear_wgrad(c.stream, a);
}

}  // namespace trainerd::core::model
