#include "core/model/segment_experts.h"

#include <functional>
#include <optional>

#include "core/model/segment_dropout.h"
#include "core/model/segment_norms.h"
#include "core/model/segment_router.h"
#include "core/model/segment_shared.h"
#include "parallel/tensor/flow.h"

namespace trainerd::core::model {
namespace {

using namespace kernels;

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

/// How many of a microbatch's rows are in use on average.
std::int64_t usual_rows(const WalkContext& c) { return routed_tokens(c) * c.model.experts.per_token; }

Tensor rows_of_experts(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {rows_of_microbatch(c), columns}, MemoryTerm::activations);
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

struct ExpertResults {
  Tensor weight_TK;  ///< of the rows; undefined: 1
  Tensor to_TD;      ///< a flow
  const char* label = "";
  std::function<void(const Tensor& rows_RD)> make;                ///< computes the experts' rows
  std::function<void()> meanwhile = nullptr;                      ///< runs while results are sent
  std::function<void(const Tensor& routed_TD)> finish = nullptr;  ///< adds to the routed tokens
  std::function<void(const Tensor& whole_TD)> shared;  ///< adds to all tokens, before the sum over tp
};
/// Adds up rows of experts by token, and over the ranks that have parts of them.
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

/// True on the rank that adds the biases of down projections, whose products are sums over tp where tp cuts
/// experts.
bool adds_down_biases(const WalkContext& c, const LayerParams& ids) {
  return ids.down.bias != kNoParam && routes_once(c);
}

void add_biases(const WalkContext& c, ParamId bias, const SegmentState& state, const Tensor& y_RN) {
  if (bias == kNoParam) return;
  const Lease biases = c.params.use(bias, WeightForm::plain, c.stream);
  c.backend().add_expert_bias(
      c.stream,
      {.y_RN = y_RN, .bias_EN = biases.tensor(), .first_E = state.first_E, .usual_rows = usual_rows(c)});
}

/// The gradient of the down projections' biases from that of their outputs, before the router's weights, and
/// with `dweight_TK` what they add to the weights' gradient.
void down_bias_gradient(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                        const Tensor& dout_RD, const Tensor& dweight_TK, BackwardMode backward) {
  const ParamId bias = ids.down.bias;
  const bool weights = dweight_TK.defined() && adds_down_biases(c, ids),
             gradient = bias != kNoParam && backward == BackwardMode::fused && trainable(c, bias);
  if (!weights && !gradient) return;
  const Lease biases = c.params.use(weights ? bias : kNoParam, WeightForm::plain, c.stream);
  ExpertBiasBackward a{.dy_RN = dout_RD,
                       .first_E = state.first_E,
                       .dbias_EN = {},
                       .source_R = state.source_R,
                       .weight_TK = state.weight_TK,
                       .usual_rows = usual_rows(c)};
  if (gradient) a.dbias_EN = c.params.grad(bias), a.mode = c.params.grad_mode(bias);
  if (weights) a.bias_EN = biases.tensor(), a.dweight_TK = dweight_TK;
  c.backend().expert_bias_backward(c.stream, a);
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
    add_biases(c, ids.up.bias, state, state.up);
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
    if (adds_down_biases(c, ids)) add_biases(c, ids.down.bias, state, out_RD);
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
  if (const ParamId bias = ids.up.bias; bias != kNoParam && trainable(c, bias))
    c.backend().expert_bias_backward(c.stream, {.dy_RN = state.up,
                                                .first_E = state.first_E,
                                                .dbias_EN = c.params.grad(bias),
                                                .mode = c.params.grad_mode(bias),
                                                .usual_rows = usual_rows(c)});
  router_gradient(c, ids, state, x.routed);
  shared_up_gradient(c, ids, state, x.whole);
}

}  // namespace

Flow experts_forward(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                     SegmentState& state, const Flow& in, const OutputPlace& to) {
  norm_forward(c, ids.mlp_norm, arenas, state, in);
  const ArenaScope scope(c.stream.scratch());
  experts_up(c, ids, arenas, state);
  count_routes(c, ids, state);
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
    down_bias_gradient(c, ids, state, dout_RD, dweights_TK, backward);
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
  from_experts(c, ids, state,
               {.weight_TK = {},
                .to_TD = dx_TD,
                .label = "experts: input gradients",
                .make = input_gradients,
                .meanwhile = weight_gradients,
                .finish = [&](const Tensor& routed_TD) { router_input_gradient(c, ids, state, routed_TD); },
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
    const Tensor dout_RD = to_experts(c, state, gradients);
    weight_gradient(c, ids.down.weight, state, dout_RD, state.act);
    down_bias_gradient(c, ids, state, dout_RD, {}, BackwardMode::fused);
  }
  input_weight_gradients(c, ids, state, x, tokens);
}

}  // namespace trainerd::core::model
