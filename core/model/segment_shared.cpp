#include "core/model/segment_shared.h"

#include "core/model/segment_norms.h"
#include "core/model/segments.h"

namespace trainerd::core::model {
namespace {

using namespace kernels;

bool gated(const LayerParams& ids) { return ids.shared_gate != kNoParam; }

Tensor of_tokens(const WalkContext& c, Arena& arena, DType dtype, std::int64_t columns) {
  return arena.take(dtype, {c.batch.tokens(), columns}, MemoryTerm::activations);
}

/// A token's factor is the weight of a router's only expert by its sigmoid, so the operators of experts
/// compute it. Their rows are the tokens themselves.
struct TokenRows {
  Tensor expert_T1, row_T1, source_T, first_2;
};
TokenRows token_rows(const WalkContext& c, Arena& arena) {
  TokenRows rows{.expert_T1 = of_tokens(c, arena, DType::i32, 1),
                 .row_T1 = of_tokens(c, arena, DType::i32, 1),
                 .source_T = arena.take(DType::i32, {c.batch.tokens()}, MemoryTerm::activations),
                 .first_2 = arena.take(DType::i32, {2}, MemoryTerm::activations)};
  c.backend().fill_zero(c.stream, rows.expert_T1);
  c.backend().sort_experts(c.stream, {.expert_TK = rows.expert_T1,
                                      .first_E = rows.first_2,
                                      .source_R = rows.source_T,
                                      .row_TK = rows.row_T1,
                                      .flag = {}});
  return rows;
}

void make_factors(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                  const Tensor& x_TD) {
  Arena& scratch = c.stream.scratch();
  const ArenaScope scope(scratch);
  const Tensor logits_T1 = of_tokens(c, scratch, c.dtype, 1);
  const Lease gate = c.params.use(ids.shared_gate, WeightForm::fprop, c.stream);
  c.backend().linear_fprop(
      c.stream, {.x_TC = x_TD, .weight = gate.weight(), .bias_N = {}, .addend_TN = {}, .y_TN = logits_T1});
  c.backend().route_forward(c.stream, {.logits_TE = logits_T1,
                                       .score = kernels::RouterScore::sigmoid,
                                       .normalise = false,
                                       .probs_TE = of_tokens(c, scratch, DType::f32, 1),
                                       .expert_TK = of_tokens(c, scratch, DType::i32, 1),
                                       .weight_TK = state.shared_factor_T1});
}

/// The gradient of a matrix [N, C].
void matrix_gradient(const WalkContext& c, ParamId weight, const Tensor& dy_TN, const Tensor& x_TC) {
  if (!trainable(c, weight)) return;
  c.backend().linear_wgrad(c.stream, {.dy_TN = dy_TN,
                                      .x_TC = x_TC,
                                      .dweight_NC = c.params.grad(weight),
                                      .dbias_N = {},
                                      .mode = c.params.grad_mode(weight),
                                      .format = c.params.gemm_format(weight)});
}

void add_input_gradient(const WalkContext& c, ParamId weight, const Tensor& dy_TN, const Tensor& dx_TD) {
  const Lease matrix = c.params.use(weight, WeightForm::dgrad, c.stream);
  c.backend().linear_dgrad(
      c.stream, {.dy_TN = dy_TN, .weight = matrix.weight(), .dx_TC = dx_TD, .mode = WriteMode::accumulate});
}

}  // namespace

void take_shared(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                 SegmentState& state) {
  if (!has_shared(ids)) return;
  if (!state.shared_up.defined()) {
    state.shared_up = of_tokens(c, arenas.gemms_to_weight, c.dtype, 2 * c.local.shared_ffn);
    if (gated(ids)) state.shared_factor_T1 = of_tokens(c, arenas.gemms_to_weight, DType::f32, 1);
  }
  state.shared_act = of_tokens(c, c.stream.scratch(), c.dtype, c.local.shared_ffn);
}

void shared_up(const WalkContext& c, const LayerParams& ids, const SegmentState& state, const Tensor& x_TD) {
  if (!has_shared(ids)) return;
  const Lease up = c.params.use(ids.shared_up.weight, WeightForm::fprop, c.stream);
  c.backend().linear_swiglu(c.stream, {.gate = gate_of(c.model),
                                       .x_TC = x_TD,
                                       .weight = up.weight(),
                                       .gate_up_T2F = state.shared_up,
                                       .act_TF = state.shared_act});
  if (gated(ids)) make_factors(c, ids, state, x_TD);
}

void shared_activate(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  if (!has_shared(ids)) return;
  c.backend().glu_forward(
      c.stream, {.gate = gate_of(c.model), .gate_up_T2F = state.shared_up, .act_TF = state.shared_act});
}

void shared_down(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                 const Tensor& sum_TD) {
  if (!has_shared(ids)) return;
  Arena& scratch = c.stream.scratch();
  const ArenaScope scope(scratch);
  Tensor act_TF = state.shared_act;
  if (gated(ids)) {
    act_TF = of_tokens(c, scratch, c.dtype, c.local.shared_ffn);
    c.backend().combine_rows(c.stream, {.from_RD = state.shared_act,
                                        .row_TK = token_rows(c, scratch).row_T1,
                                        .weight_TK = state.shared_factor_T1,
                                        .to_TD = act_TF});
  }
  const Lease down = c.params.use(ids.shared_down.weight, WeightForm::fprop, c.stream);
  c.backend().linear_fprop(
      c.stream, {.x_TC = act_TF, .weight = down.weight(), .bias_N = {}, .addend_TN = sum_TD, .y_TN = sum_TD});
}

void shared_backward(const WalkContext& c, const LayerParams& ids, Frame& frame, SegmentState& state,
                     const Tensor& dout_TD) {
  if (!has_shared(ids)) return;
  state.shared_act = of_tokens(c, *frame.grads, c.dtype, c.local.shared_ffn);
  const Lease down = c.params.use(ids.shared_down.weight, WeightForm::dgrad, c.stream);
  if (!gated(ids))
    return c.backend().linear_dgrad_swiglu(c.stream, {.gate = gate_of(c.model),
                                                      .dy_TD = dout_TD,
                                                      .weight = down.weight(),
                                                      .gate_up_T2F = state.shared_up,
                                                      .dgate_up_T2F = state.shared_up,
                                                      .act_TF = state.shared_act});
  state.dshared_logits_T1 = of_tokens(c, *frame.grads, c.dtype, 1);
  Arena& scratch = c.stream.scratch();
  const ArenaScope scope(scratch);
  const Tensor dact_TF = of_tokens(c, scratch, c.dtype, c.local.shared_ffn),
               dfactor_T1 = of_tokens(c, scratch, DType::f32, 1);
  c.backend().linear_dgrad(c.stream, {.dy_TN = dout_TD, .weight = down.weight(), .dx_TC = dact_TF});
  shared_activate(c, ids, state);
  const TokenRows rows = token_rows(c, scratch);
  c.backend().weigh_rows(c.stream, {.source_R = rows.source_T,
                                    .weight_TK = state.shared_factor_T1,
                                    .dact_RF = dact_TF,
                                    .act_RF = state.shared_act,
                                    .dweight_TK = dfactor_T1});
  c.backend().glu_backward(c.stream, {.gate = gate_of(c.model),
                                      .dact_TF = dact_TF,
                                      .gate_up_T2F = state.shared_up,
                                      .dgate_up_T2F = state.shared_up,
                                      .act_TF = {}});
  // The sigmoids are their own weights.
  c.backend().route_backward(c.stream, {.probs_TE = state.shared_factor_T1,
                                        .expert_TK = rows.expert_T1,
                                        .score = kernels::RouterScore::sigmoid,
                                        .normalise = false,
                                        .dweight_TK = dfactor_T1,
                                        .dlogits_TE = state.dshared_logits_T1,
                                        .count_BE = {},
                                        .loss_weight_T = {}});
}

void shared_input_gradient(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                           const Tensor& dx_TD) {
  if (!has_shared(ids)) return;
  add_input_gradient(c, ids.shared_up.weight, state.shared_up, dx_TD);
  if (gated(ids)) add_input_gradient(c, ids.shared_gate, state.dshared_logits_T1, dx_TD);
}

void shared_down_gradient(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                          const Tensor& dout_TD) {
  if (has_shared(ids)) matrix_gradient(c, ids.shared_down.weight, dout_TD, state.shared_act);
}

void shared_up_gradient(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                        const Tensor& x_TD) {
  if (!has_shared(ids)) return;
  matrix_gradient(c, ids.shared_up.weight, state.shared_up, x_TD);
  if (gated(ids)) matrix_gradient(c, ids.shared_gate, state.dshared_logits_T1, x_TD);
}

}  // namespace trainerd::core::model
