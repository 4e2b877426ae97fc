#include "core/model/segment_experts.h"

#include <functional>
#include <optional>

#include "core/model/segment_dropout.h"
#include "core/model/segment_norms.h"
#include "core/model/segment_shared.h"
#include "parallel/tensor/flow.h"

namespace trainerd::core::model {
namespace {

using namespace kernels;

/// Tokens that this rank routes.
std::int64_t routed_tokens(const WalkContext& c) {
  return c.ep.own_tokens ? c.batch.tokens() / c.tp.group.size() : c.batch.tokens();
}
std::int64_t first_routed(const WalkContext& c) {
  return c.ep.own_tokens ? c.tp.group.rank() * routed_tokens(c) : 0;
}
/// Their part of one number for each token of the batch.
Tensor of_routed(const WalkContext& c, const Tensor& x_T) {
  return x_T.defined() ? x_T.rows(first_routed(c), routed_tokens(c)) : x_T;
}

/// A flow in the forms that its readers need.
struct FlowRows {
  Tensor routed;  ///< of the tokens that this rank routes
  Tensor whole;   ///< of all; undefined if nothing reads it
};
FlowRows rows_of_flow(const WalkContext& c, const LayerParams& ids, const Tensor& flow, const char* label) {
  const bool whole = !c.ep.own_tokens || has_shared(ids);
  const Tensor all = whole ? parallel::gathered(c.tp, c.stream, flow, label) : Tensor{};
  return {c.ep.own_tokens ? flow : all, all};
}

/// True on the ranks that together route each token once.
bool routes_once(const WalkContext& c) { return c.ep.own_tokens || c.tp.group.rank() == 0; }

/// Rows of a microbatch's experts: a copy of each token for each of its experts.
std::int64_t rows_of_microbatch(const WalkContext& c) {
  return c.ep.ranks() > 1 ? c.ep.rows : routed_tokens(c) * c.model.experts.per_token;
}

/// How many of them are in use on average.
std::int64_t usual_rows(const WalkContext& c) { return routed_tokens(c) * c.model.experts.per_token; }

Tensor rows_of_experts(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {rows_of_microbatch(c), columns}, MemoryTerm::activations);
}

/// One number for each choice of the rank's tokens, or of those that it receives for its experts.
enum class Tokens : std::uint8_t { own, received };
Tensor of_choices(const WalkContext& c, Arena& arena, DType dtype, Tokens tokens) {
  const std::int64_t own = routed_tokens(c), count = tokens == Tokens::received ? c.ep.received(own) : own;
  return arena.take(dtype, {count, c.model.experts.per_token}, MemoryTerm::activations);
}

/// Memory for the router's results, until the weight gradients have read them.
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

RouterScore score_of(const job::ModelOptions& m) {
  return m.experts.score == job::RouterScore::sigmoid ? RouterScore::sigmoid : RouterScore::softmax;
}

/// `x_TD`: the tokens that this rank routes.
void route(const WalkContext& c, const LayerParams& ids, const SegmentState& state, const Tensor& x_TD) {
  Arena& scratch = c.stream.scratch();
  const ArenaScope scope(scratch);
  const Tensor logits_TE = scratch.take(c.dtype, state.probs_TE.shape, MemoryTerm::activations);
  const Lease router = c.params.use(ids.router, WeightForm::fprop, c.stream);
  c.backend().linear_fprop(
      c.stream, {.x_TC = x_TD, .weight = router.weight(), .bias_N = {}, .addend_TN = {}, .y_TN = logits_TE});
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

/// Copies the received tokens to rows of experts, in scratch.
Tensor to_experts(const WalkContext& c, const SegmentState& state, const parallel::TokenTransfer& tokens) {
  const Tensor rows = rows_of_experts(c, c.stream.scratch(), c.model.hidden);
  c.backend().gather_rows(c.stream, {.from_TD = tokens.arrived(c.stream),
                                     .source_R = state.source_R,
                                     .copies = c.model.experts.per_token,
                                     .to_RD = rows,
                                     .usual_rows = usual_rows(c)});
  return rows;
}

/// `computes`: the rank has something to compute meanwhile.
void send(const WalkContext& c, const SegmentState& state, const Tensor& x_TD, const char* label,
          parallel::TokenTransfer& transfer, bool computes = true) {
  transfer.start(c.ep, c.backend(), c.stream, x_TD, state.slots, label, c.ep.progress(c.stream, computes));
}

/// Adds up rows of experts, which `make` computes, by token, and over the ranks that have parts of them.
/// `meanwhile`, if there is one, runs beside their way back. `finish` gets the routed tokens, to add more.
/// `shared` adds the shared MLP's to all tokens, before the sum over tp.
struct ExpertResults {
  Tensor weight_TK;
  Tensor to_TD;
  const char* label = "";
  std::function<void(const Tensor& rows_RD)> make;
  std::function<void()> meanwhile = nullptr;
  std::function<void(const Tensor& routed_TD)> finish = nullptr;
  std::function<void(const Tensor& whole_TD)> shared;
};
void from_experts(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                  const ExpertResults& a) {
  const auto add_up = [&](const Tensor& routed_TD) {
    {
      const ArenaScope scope(c.stream.scratch());
      const Tensor all_TD = parallel::take_results(c.ep, c.stream, routed_TD);
      {
        const ArenaScope rows_scope(c.stream.scratch());
        const Tensor rows_RD = rows_of_experts(c, c.stream.scratch(), c.model.hidden);
        a.make(rows_RD);
        c.backend().combine_rows(c.stream, {.from_RD = rows_RD,
                                            .row_TK = state.row_TK,
                                            .weight_TK = a.weight_TK,
                                            .to_TD = all_TD,
                                            .usual_rows = usual_rows(c)});
      }
      const parallel::ResultTransfer results(c.ep, c.stream, all_TD, routed_TD, a.label,
                                             c.ep.progress(c.stream, a.meanwhile != nullptr));
      if (a.meanwhile) a.meanwhile();
      results.add_up(c.ep, c.backend(), c.stream, state.slots);
    }
    if (a.finish) a.finish(routed_TD);
  };
  if (c.ep.own_tokens && !has_shared(ids)) return add_up(a.to_TD);
  parallel::summed(c.tp, c.stream, a.to_TD, a.label, [&](const Tensor& whole_TD) {
    // This rank adds nothing of experts to the tokens that it does not route.
    if (c.ep.own_tokens) c.backend().fill_zero(c.stream, whole_TD);
    add_up(of_routed(c, whole_TD));
    a.shared(whole_TD);
  });
}

/// On the device: how many rows are in use.
Tensor used_rows(const SegmentState& state) { return state.first_E.rows(state.first_E.numel() - 1, 1); }

void activate(const WalkContext& c, const SegmentState& state) {
  c.backend().glu_forward(c.stream, {.gate = gate_of(c.model),
                                     .gate_up_T2F = state.up,
                                     .act_TF = state.act,
                                     .used_rows = used_rows(state),
                                     .usual_rows = usual_rows(c)});
}

/// Routes, and computes the activations of experts and shared MLP in scratch, in the caller's scope.
void experts_up(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                SegmentState& state) {
  const bool fresh = !state.up.defined();
  if (fresh) {
    take_routes(c, arenas.gemms_to_weight, state);
    state.up = rows_of_experts(c, arenas.gemms_to_weight, 2 * c.local.expert_ffn);
  }
  state.act = rows_of_experts(c, c.stream.scratch(), c.local.expert_ffn);
  take_shared(c, ids, arenas, state);
  if (fresh) {
    const ArenaScope scope(c.stream.scratch());
    const FlowRows x = rows_of_flow(c, ids, state.y_TD, "experts: tokens");
    route(c, ids, state, x.routed);
    parallel::TokenTransfer tokens(c.ep, c.stream, x.routed);
    send(c, state, x.routed, "experts: tokens", tokens, has_shared(ids));
    shared_up(c, ids, state, x.whole);
    const Lease up = c.params.use(ids.up.weight, WeightForm::plain, c.stream);
    c.backend().expert_fprop(c.stream, {.x_RC = to_experts(c, state, tokens),
                                        .weight_NC = up.tensor(),
                                        .first_E = state.first_E,
                                        .y_RN = state.up,
                                        .format = up.weight().format,
                                        .usual_rows = usual_rows(c)});
  } else shared_activate(c, ids, state);
  activate(c, state);
}

/// The down projections, added up by token, and the shared MLP's.
void experts_down(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                  const Tensor& to_TD) {
  const auto down_projections = [&](const Tensor& out_RD) {
    const Lease down = c.params.use(ids.down.weight, WeightForm::plain, c.stream);
    c.backend().expert_fprop(c.stream, {.x_RC = state.act,
                                        .weight_NC = down.tensor(),
                                        .first_E = state.first_E,
                                        .y_RN = out_RD,
                                        .format = down.weight().format,
                                        .usual_rows = usual_rows(c)});
  };
  from_experts(c, ids, state,
               {.weight_TK = state.weight_TK,
                .to_TD = to_TD,
                .label = "experts: outputs",
                .make = down_projections,
                .shared = [&](const Tensor& whole_TD) { shared_down(c, ids, state, whole_TD); }});
}

/// The gradient of an expert weight [E N, C].
void weight_gradient(const WalkContext& c, ParamId weight, const SegmentState& state, const Tensor& dy_RN,
                     const Tensor& x_RC) {
  if (!trainable(c, weight)) return;
  c.backend().expert_wgrad(c.stream, {.dy_RN = dy_RN,
                                      .x_RC = x_RC,
                                      .first_E = state.first_E,
                                      .dweight_NC = c.params.grad(weight),
                                      .mode = c.params.grad_mode(weight),
                                      .format = c.params.gemm_format(weight),
                                      .usual_rows = usual_rows(c)});
}

/// The gradients of the up projections, the router and the shared MLP's gate, from the rank's tokens and
/// those that its experts get.
void input_weight_gradients(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                            const FlowRows& x, const parallel::TokenTransfer& tokens) {
  const ArenaScope scope(c.stream.scratch());
  weight_gradient(c, ids.up.weight, state, state.up, to_experts(c, state, tokens));
  c.backend().linear_wgrad(c.stream, {.dy_TN = state.dlogits_TE,
                                      .x_TC = x.routed,
                                      .dweight_NC = c.params.grad(ids.router),
                                      .dbias_N = {},
                                      .mode = c.params.grad_mode(ids.router)});
  shared_up_gradient(c, ids, state, x.whole);
}

/// The gradient of the logits. `dweight_TK`: of the rank's tokens. Where tensor parallelism cuts experts each
/// rank has a part of it, and the first has all of the balance loss.
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

}  // namespace

Flow experts_forward(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                     SegmentState& state, const Flow& in, const OutputPlace& to) {
  norm_forward(c, ids.mlp_norm, arenas, state, in);
  const ArenaScope scope(c.stream.scratch());
  experts_up(c, ids, arenas, state);
  if (c.batch.expert_counts.defined() && routes_once(c))
    c.backend().count_experts(c.stream, {.expert_TK = state.expert_TK,
                                         .count_BE = c.batch.expert_counts.rows(ids.index, 1),
                                         .mode = WriteMode::accumulate});
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
  state.act = rows_of_experts(c, *frame.grads, c.local.expert_ffn);
  state.dlogits_TE = frame.grads->take(c.dtype, state.probs_TE.shape, MemoryTerm::activations);
  const bool weights = backward == BackwardMode::fused && trainable(c, ids.up.weight);
  const ArenaScope scope(c.stream.scratch());
  // The weight gradients need the tokens again. They are sent after the output gradients.
  FlowRows x;
  std::optional<parallel::TokenTransfer> tokens;
  if (weights) {
    x = rows_of_flow(c, ids, state.y_TD, "experts: tokens");
    tokens.emplace(c.ep, c.stream, x.routed);
  }
  {
    const ArenaScope outputs(c.stream.scratch());
    const FlowRows dout = rows_of_flow(c, ids, dout_TD, "experts: gradients");
    const Tensor dweight_TK = of_choices(c, c.stream.scratch(), DType::f32, Tokens::own),
                 dweights_TK = parallel::take_results(c.ep, c.stream, dweight_TK),
                 dact_RF = rows_of_experts(c, c.stream.scratch(), c.local.expert_ffn);
    parallel::TokenTransfer gradients(c.ep, c.stream, dout.routed);
    send(c, state, dout.routed, "experts: gradients", gradients);
    if (weights) send(c, state, x.routed, "experts: tokens", *tokens);
    shared_backward(c, ids, frame, state, dout.whole);
    if (backward == BackwardMode::fused) shared_down_gradient(c, ids, state, dout.whole);
    activate(c, state);
    // Those of other ranks' experts, and of padding.
    if (c.ep.ranks() > 1 || c.batch.real_T.defined()) c.backend().fill_zero(c.stream, dweights_TK);
    const Tensor dout_RD = to_experts(c, state, gradients);
    const Lease down = c.params.use(ids.down.weight, WeightForm::plain, c.stream);
    c.backend().expert_dgrad(c.stream, {.dy_RN = dout_RD,
                                        .weight_NC = down.tensor(),
                                        .first_E = state.first_E,
                                        .dx_RC = dact_RF,
                                        .format = down.weight().format,
                                        .usual_rows = usual_rows(c)});
    // From here on with the router's weights, as if they were factors of the activations.
    c.backend().weigh_rows(c.stream, {.source_R = state.source_R,
                                      .weight_TK = state.weight_TK,
                                      .dact_RF = dact_RF,
                                      .act_RF = state.act,
                                      .dweight_TK = dweights_TK,
                                      .usual_rows = usual_rows(c)});
    const parallel::ResultTransfer choices(c.ep, c.stream, dweights_TK, dweight_TK,
                                           "experts: gradients of weights", c.ep.progress(c.stream, true));
    if (backward == BackwardMode::fused) weight_gradient(c, ids.down.weight, state, dout_RD, state.act);
    c.backend().glu_backward(c.stream, {.gate = gate_of(c.model),
                                        .dact_TF = dact_RF,
                                        .gate_up_T2F = state.up,
                                        .dgate_up_T2F = state.up,
                                        .act_TF = {},
                                        .used_rows = used_rows(state),
                                        .usual_rows = usual_rows(c)});
    choices.add_up_choices(c.ep, c.backend(), c.stream, state.slots);
    route_backward(c, state, dweight_TK, loss);
  }
  const auto input_gradients = [&](const Tensor& dx_RD) {
    const Lease up = c.params.use(ids.up.weight, WeightForm::plain, c.stream);
    c.backend().expert_dgrad(c.stream, {.dy_RN = state.up,
                                        .weight_NC = up.tensor(),
                                        .first_E = state.first_E,
                                        .dx_RC = dx_RD,
                                        .format = up.weight().format,
                                        .usual_rows = usual_rows(c)});
  };
  std::function<void()> weight_gradients;
  if (weights) weight_gradients = [&] { input_weight_gradients(c, ids, state, x, *tokens); };
  const auto router_gradients = [&](const Tensor& routed_TD) {
    const Lease router = c.params.use(ids.router, WeightForm::dgrad, c.stream);
    c.backend().linear_dgrad(c.stream, {.dy_TN = state.dlogits_TE,
                                        .weight = router.weight(),
                                        .dx_TC = routed_TD,
                                        .mode = WriteMode::accumulate});
  };
  from_experts(c, ids, state,
               {.weight_TK = {},
                .to_TD = dx_TD,
                .label = "experts: input gradients",
                .make = input_gradients,
                .meanwhile = weight_gradients,
                .finish = router_gradients,
                .shared = [&](const Tensor& whole_TD) { shared_input_gradient(c, ids, state, whole_TD); }});
  norm_backward(c, ids.mlp_norm, state, dx_TD, dflow_TD, dx_TD);
}

void experts_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                             const Tensor& dflow_TD) {
  if (!trainable(c, ids.up.weight)) return;
  const ArenaScope scope(c.stream.scratch());
  const FlowRows x = rows_of_flow(c, ids, state.y_TD, "experts: tokens");
  parallel::TokenTransfer tokens(c.ep, c.stream, x.routed);
  {
    const ArenaScope outputs(c.stream.scratch());
    const FlowRows dout =
        rows_of_flow(c, ids, state.dout_TD.defined() ? state.dout_TD : dflow_TD, "experts: gradients");
    parallel::TokenTransfer gradients(c.ep, c.stream, dout.routed);
    send(c, state, dout.routed, "experts: gradients", gradients);
    send(c, state, x.routed, "experts: tokens", tokens);
    shared_down_gradient(c, ids, state, dout.whole);
    weight_gradient(c, ids.down.weight, state, to_experts(c, state, gradients), state.act);
  }
  input_weight_gradients(c, ids, state, x, tokens);
}

}  // namespace trainerd::core::model
