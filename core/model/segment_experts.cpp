#include "core/model/segment_experts.h"

#include "core/model/segment_dropout.h"
#include "core/model/segment_norms.h"
#include "parallel/tensor/flow.h"

namespace trainerd::core::model {
namespace {

using namespace kernels;

/// Rows of a microbatch's experts: a copy of each token for each of its experts.
std::int64_t expert_rows(const WalkContext& c) { return c.batch.tokens() * c.model.experts.per_token; }

Tensor rows_of_experts(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {expert_rows(c), columns}, MemoryTerm::activations);
}

Tensor of_choices(const WalkContext& c, Arena& arena, DType dtype) {
  return arena.take(dtype, {c.batch.tokens(), c.model.experts.per_token}, MemoryTerm::activations);
}

/// Memory for the router's results, until the weight gradients have read them.
void take_routes(const WalkContext& c, Arena& arena, SegmentState& state) {
  const std::int64_t experts = c.model.experts.count;
  state.probs_TE = arena.take(DType::f32, {c.batch.tokens(), experts}, MemoryTerm::activations);
  state.expert_TK = of_choices(c, arena, DType::i32);
  state.weight_TK = of_choices(c, arena, DType::f32);
  state.row_TK = of_choices(c, arena, DType::i32);
  state.source_R = arena.take(DType::i32, {expert_rows(c)}, MemoryTerm::activations);
  state.first_E = arena.take(DType::i32, {experts + 1}, MemoryTerm::activations);
}

/// `x_TD`: all tokens.
void route(const WalkContext& c, const LayerParams& ids, const SegmentState& state, const Tensor& x_TD) {
  const ArenaScope scope(c.stream.scratch());
  const Tensor logits_TE = c.stream.scratch().take(c.dtype, state.probs_TE.shape, MemoryTerm::activations);
  const Lease router = c.params.use(ids.router, WeightForm::fprop, c.stream);
  c.backend().linear_fprop(
      c.stream, {.x_TC = x_TD, .weight = router.weight(), .bias_N = {}, .addend_TN = {}, .y_TN = logits_TE});
  c.backend().route_forward(c.stream, {.logits_TE = logits_TE,
                                       .normalise = c.model.experts.normalise,
                                       .probs_TE = state.probs_TE,
                                       .expert_TK = state.expert_TK,
                                       .weight_TK = state.weight_TK});
  c.backend().sort_experts(c.stream, {.expert_TK = state.expert_TK,
                                      .first_E = state.first_E,
                                      .source_R = state.source_R,
                                      .row_TK = state.row_TK});
}

/// The tokens of a flow as rows of experts, in scratch.
Tensor to_experts(const WalkContext& c, const SegmentState& state, const Tensor& x_TD) {
  const Tensor rows = rows_of_experts(c, c.stream.scratch(), c.model.hidden);
  c.backend().gather_rows(c.stream, {.from_TD = x_TD, .source_R = state.source_R, .to_RD = rows});
  return rows;
}

Gate gate_of(const WalkContext& c) { return c.model.mlp == job::Mlp::geglu ? Gate::gelu : Gate::silu; }

void activate(const WalkContext& c, const SegmentState& state) {
  c.backend().glu_forward(c.stream, {.gate = gate_of(c), .gate_up_T2F = state.up, .act_TF = state.act});
}

/// Routes, and computes the experts' activations in scratch, in the caller's scope.
void experts_up(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                SegmentState& state) {
  const bool fresh = !state.up.defined();
  if (fresh) {
    take_routes(c, arenas.gemms_to_weight, state);
    state.up = rows_of_experts(c, arenas.gemms_to_weight, 2 * c.local.ffn);
  }
  state.act = rows_of_experts(c, c.stream.scratch(), c.local.ffn);
  if (fresh) {
    const ArenaScope scope(c.stream.scratch());
    const Tensor x_TD = parallel::gathered(c.tp, c.stream, state.y_TD, "experts: tokens");
    route(c, ids, state, x_TD);
    const Lease up = c.params.use(ids.up.weight, WeightForm::plain, c.stream);
    c.backend().expert_fprop(c.stream, {.x_RC = to_experts(c, state, x_TD),
                                        .weight_NC = up.tensor(),
                                        .first_E = state.first_E,
                                        .y_RN = state.up});
  }
  activate(c, state);
}

/// The down projections, added up by token.
void experts_down(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                  const Tensor& to_TD) {
  const ArenaScope scope(c.stream.scratch());
  const Tensor out_RD = rows_of_experts(c, c.stream.scratch(), c.model.hidden);
  const Lease down = c.params.use(ids.down.weight, WeightForm::plain, c.stream);
  c.backend().expert_fprop(
      c.stream, {.x_RC = state.act, .weight_NC = down.tensor(), .first_E = state.first_E, .y_RN = out_RD});
  parallel::summed(c.tp, c.stream, to_TD, "experts: outputs", [&](const Tensor& whole_TD) {
    c.backend().combine_rows(
        c.stream,
        {.from_RD = out_RD, .row_TK = state.row_TK, .weight_TK = state.weight_TK, .to_TD = whole_TD});
  });
}

/// The gradient of an expert weight [E N, C].
void weight_gradient(const WalkContext& c, ParamId weight, const SegmentState& state, const Tensor& dy_RN,
                     const Tensor& x_RC) {
  if (!trainable(c, weight)) return;
  c.backend().expert_wgrad(c.stream, {.dy_RN = dy_RN,
                                      .x_RC = x_RC,
                                      .first_E = state.first_E,
                                      .dweight_NC = c.params.grad(weight),
                                      .mode = c.params.grad_mode(weight)});
}

/// The gradients of the up projections and the router.
void input_weight_gradients(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  if (!trainable(c, ids.up.weight)) return;
  const ArenaScope scope(c.stream.scratch());
  const Tensor x_TD = parallel::gathered(c.tp, c.stream, state.y_TD, "experts: tokens");
  weight_gradient(c, ids.up.weight, state, state.up, to_experts(c, state, x_TD));
  c.backend().linear_wgrad(c.stream, {.dy_TN = state.dlogits_TE,
                                      .x_TC = x_TD,
                                      .dweight_NC = c.params.grad(ids.router),
                                      .dbias_N = {},
                                      .mode = c.params.grad_mode(ids.router)});
}

/// The gradient of the logits. With tensor parallelism each rank has a part of it, since it has a part of
/// every expert, and the first has all of the balance loss.
void route_backward(const WalkContext& c, const SegmentState& state, const Tensor& dweight_TK,
                    const LossTarget& loss) {
  RouteBackward a{.probs_TE = state.probs_TE,
                  .expert_TK = state.expert_TK,
                  .normalise = c.model.experts.normalise,
                  .dweight_TK = dweight_TK,
                  .dlogits_TE = state.dlogits_TE,
                  .count_BE = {},
                  .loss_weight_T = {}};
  const ArenaScope scope(c.stream.scratch());
  if (loss.expert_balance > 0 && c.tp.group.rank() == 0) {
    const std::int64_t experts = c.model.experts.count,
                       ranks = c.cp.group != nullptr ? c.cp.group->size() : 1,
                       tokens_of_sample = c.batch.tokens() / c.batch.samples * ranks;
    a.count_BE = c.stream.scratch().take(DType::f32, {c.batch.samples, experts}, MemoryTerm::activations);
    a.loss_weight_T = c.batch.loss_weight_T;
    a.chunks = ranks > 1 ? 2 : 1;
    a.balance = loss.expert_balance * loss.grad_scale * static_cast<float>(experts) /
                static_cast<float>(c.model.experts.per_token * tokens_of_sample);
    c.backend().count_experts(c.stream,
                              {.expert_TK = state.expert_TK, .count_BE = a.count_BE, .chunks = a.chunks});
    parallel::sum_over_context(c.cp, c.stream, a.count_BE);
  }
  c.backend().route_backward(c.stream, a);
}

}  // namespace

Flow experts_forward(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                     SegmentState& state, const Flow& in, const OutputPlace& to) {
  norm_forward(c, ids.mlp_norm, arenas, state, in);
  const ArenaScope scope(c.stream.scratch());
  experts_up(c, ids, arenas, state);
  experts_down(c, ids, state, output_place(c, ids.mlp_post_norm, arenas, state, to.delta_TD));
  post_norm_forward(c, ids.mlp_post_norm, state, to.delta_TD);
  finish_contribution(c, ids, Segment::Kind::mlp, to.delta_TD);
  return {state.sum_TD, to.delta_TD};
}

void experts_recompute(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                       SegmentState& state, const Flow& in) {
  if (!state.y_TD.defined()) norm_forward(c, ids.mlp_norm, arenas, state, in);
  const bool out = ids.mlp_post_norm.weight != kNoParam && !state.out_TD.defined();
  if (state.up.defined() && !out) return;  // backward recomputes the activation
  const Tensor place = out ? output_place(c, ids.mlp_post_norm, arenas, state, {}) : Tensor{};
  const ArenaScope scope(c.stream.scratch());
  experts_up(c, ids, arenas, state);
  if (!out) return;
  experts_down(c, ids, state, place);
  // Only its statistics are needed; the contribution itself is not read.
  post_norm_forward(c, ids.mlp_post_norm, state, flow(c, c.stream.scratch()));
}

void experts_backward_input(const WalkContext& c, const LayerParams& ids, Frame& frame, SegmentState& state,
                            const Tensor& dflow_TD, const Tensor& dx_TD, const LossTarget& loss,
                            BackwardMode backward) {
  const Tensor dout_TD =
      output_gradient(c, ids.mlp_post_norm, frame, state,
                      contribution_gradient(c, ids, Segment::Kind::mlp, frame, state, dflow_TD));
  state.act = rows_of_experts(c, *frame.grads, c.local.ffn);
  state.dlogits_TE = frame.grads->take(c.dtype, state.probs_TE.shape, MemoryTerm::activations);
  {
    const ArenaScope scope(c.stream.scratch());
    const Tensor dweight_TK = of_choices(c, c.stream.scratch(), DType::f32),
                 dact_RF = rows_of_experts(c, c.stream.scratch(), c.local.ffn),
                 dout_RD =
                     to_experts(c, state, parallel::gathered(c.tp, c.stream, dout_TD, "experts: gradients"));
    const Lease down = c.params.use(ids.down.weight, WeightForm::plain, c.stream);
    c.backend().expert_dgrad(
        c.stream, {.dy_RN = dout_RD, .weight_NC = down.tensor(), .first_E = state.first_E, .dx_RC = dact_RF});
    activate(c, state);
    // From here on with the router's weights, as if they were factors of the activations.
    c.backend().weigh_rows(c.stream, {.source_R = state.source_R,
                                      .weight_TK = state.weight_TK,
                                      .dact_RF = dact_RF,
                                      .act_RF = state.act,
                                      .dweight_TK = dweight_TK});
    if (backward == BackwardMode::fused) weight_gradient(c, ids.down.weight, state, dout_RD, state.act);
    c.backend().glu_backward(c.stream, {.gate = gate_of(c),
                                        .dact_TF = dact_RF,
                                        .gate_up_T2F = state.up,
                                        .dgate_up_T2F = state.up,
                                        .act_TF = {}});
    route_backward(c, state, dweight_TK, loss);
  }
  if (backward == BackwardMode::fused) input_weight_gradients(c, ids, state);
  {
    const ArenaScope scope(c.stream.scratch());
    const Tensor dx_RD = rows_of_experts(c, c.stream.scratch(), c.model.hidden);
    const Lease up = c.params.use(ids.up.weight, WeightForm::plain, c.stream),
                router = c.params.use(ids.router, WeightForm::dgrad, c.stream);
    c.backend().expert_dgrad(
        c.stream, {.dy_RN = state.up, .weight_NC = up.tensor(), .first_E = state.first_E, .dx_RC = dx_RD});
    parallel::summed(c.tp, c.stream, dx_TD, "experts: input gradients", [&](const Tensor& whole_TD) {
      c.backend().combine_rows(
          c.stream, {.from_RD = dx_RD, .row_TK = state.row_TK, .weight_TK = {}, .to_TD = whole_TD});
      c.backend().linear_dgrad(c.stream, {.dy_TN = state.dlogits_TE,
                                          .weight = router.weight(),
                                          .dx_TC = whole_TD,
                                          .mode = WriteMode::accumulate});
    });
  }
  norm_backward(c, ids.mlp_norm, state, dx_TD, dflow_TD, dx_TD);
}

void experts_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                             const Tensor& dflow_TD) {
  if (!trainable(c, ids.up.weight)) return;
  {
    const ArenaScope scope(c.stream.scratch());
    const Tensor& dout_TD = state.dout_TD.defined() ? state.dout_TD : dflow_TD;
    weight_gradient(c, ids.down.weight, state,
                    to_experts(c, state, parallel::gathered(c.tp, c.stream, dout_TD, "experts: gradients")),
                    state.act);
  }
  input_weight_gradients(c, ids, state);
}

}  // namespace trainerd::core::model
