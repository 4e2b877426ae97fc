#include "core/model/segments.h"

#include <cmath>

#include "core/model/linear.h"
#include "core/model/segment_attention.h"
#include "core/model/segment_dropout.h"
#include "core/model/segment_experts.h"
#include "core/model/segment_latent.h"
#include "core/model/segment_norms.h"
#include "parallel/tensor/qk_norm.h"

namespace trainerd::core::model {
namespace {

using namespace kernels;

QkNormSpan qk_norm_span(const job::ModelOptions& m) {
  return m.qk_norm_span == job::QkNormSpan::all ? QkNormSpan::all : QkNormSpan::head;
}

/// The model's own factor; or sqrt(D), rounded to the activations' dtype as in models that scale by it.
float embedding_scale(const WalkContext& c) {
  if (!c.model.scale_embeddings) return static_cast<float>(c.model.embedding_scale);
  const float scale = std::sqrt(static_cast<float>(c.model.hidden));
  if (c.dtype == DType::f16) return to_float(to_fp16(scale));
  return c.dtype == DType::bf16 ? to_float(to_bf16(scale)) : scale;
}

/// Undefined without rotary positions.
const Tensor& rope_table(const WalkContext& c, const LayerParams& ids) {
  return ids.options.slides ? c.rope.sliding_SR : c.rope.full_SR;
}

Tensor activation(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {c.batch.tokens(), columns}, MemoryTerm::activations);
}

parallel::HeadLoss head_arguments(const WalkContext& c, const SegmentState& state, const LossTarget& loss,
                                  const Weight& fprop) {
  parallel::HeadLoss a;
  a.y_TD = state.y_TD;
  a.fprop = fprop;
  a.targets_T = c.batch.targets_T;
  a.loss_weight_T = c.batch.loss_weight_T;
  a.first_row = c.local.first_vocab_row;
  a.vocab = c.model.vocab;
  a.softcap = static_cast<float>(c.model.logit_softcap);
  a.grad_scale = loss.grad_scale;
  a.loss_scale = loss.loss_scale;
  a.label_smoothing = loss.label_smoothing;
  a.z_loss = loss.z_loss;
  a.loss_T = loss.loss_T;
  a.z_loss_T = loss.z_loss_T;
  a.preference = loss.preference;
  if (a.preference) a.preference->reference_P2 = c.batch.reference_P2;
  return a;
}

Linear qkv_of(const WalkContext& c, const LayerParams& ids) { return {c, ids.qkv, LinearSplit::column}; }
Linear attn_out_of(const WalkContext& c, const LayerParams& ids) {
  return {c, ids.attn_out, LinearSplit::row};
}
Linear up_of(const WalkContext& c, const LayerParams& ids) { return {c, ids.up, LinearSplit::column}; }
Linear down_of(const WalkContext& c, const LayerParams& ids) { return {c, ids.down, LinearSplit::row}; }

}  // namespace

// ---- Embedding

Flow embedding_forward(const WalkContext& c, const ActivationArenas& arenas, SegmentState& state) {
  state.sum_TD = flow(c, arenas.sum);
  const Lease table = c.params.use(c.ids.embedding, WeightForm::plain, c.stream);
  const Lease positions = c.params.use(c.ids.positions, WeightForm::plain, c.stream);
  parallel::vocab_parallel_embedding(c.tp, c.stream,
                                     {.tokens_T = c.batch.tokens_T,
                                      .table_VD = table.tensor(),
                                      .first_row = c.local.first_vocab_row,
                                      .positions_T = c.batch.positions_T,
                                      .positions_table_SD = positions.tensor(),
                                      .out_TD = state.sum_TD});
  scale_in_place(c, state.sum_TD, embedding_scale(c));
  drop_embedding(c, state.sum_TD);
  return {state.sum_TD, {}};
}

void embedding_backward_weight(const WalkContext& c, const Tensor& dflow_TD) {
  if (!trainable(c, c.ids.embedding)) return;
  drop_embedding(c, dflow_TD);
  scale_in_place(c, dflow_TD, embedding_scale(c));
  parallel::vocab_parallel_embedding_backward(c.tp, c.stream,
                                              {.rows_T = c.batch.tokens_T,
                                               .first_row = c.local.first_vocab_row,
                                               .dout_TD = dflow_TD,
                                               .dtable_VD = c.params.grad(c.ids.embedding),
                                               .mode = c.params.grad_mode(c.ids.embedding)});
  if (c.ids.positions == kNoParam) return;
  parallel::vocab_parallel_embedding_backward(c.tp, c.stream,
                                              {.rows_T = c.batch.positions_T,
                                               .first_row = 0,
                                               .dout_TD = dflow_TD,
                                               .dtable_VD = c.params.grad(c.ids.positions),
                                               .mode = c.params.grad_mode(c.ids.positions)});
}

// ---- Attention

void attention_state(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                     SegmentState& state, const Flow& in) {
  const HeadGeometry heads = heads_of(c);
  if (!state.y_TD.defined()) norm_forward(c, ids.attn_norm, arenas, state, in);
  if (ids.latent.present()) {
    latent_state(c, ids, rope_table(c, ids), arenas, state);
    if (!state.attended.defined()) attend(c, ids, arenas, state);
    return;
  }
  if (!state.projected.defined()) {
    state.projected = activation(c, arenas.gemms_to_backward, heads.columns());
    qkv_of(c, ids).forward(state.y_TD, state.projected);
  }
  if (!state.qkv.defined()) {
    // qk_norm is not invertible, so its input must be kept; rotation alone is done in place.
    state.qkv = c.model.qk_norm ? activation(c, arenas.cheap_to_backward, heads.columns()) : state.projected;
    if (rope_table(c, ids).defined() || c.model.qk_norm) {
      const Lease q = c.params.use(ids.q_norm, WeightForm::plain, c.stream);
      const Lease k = c.params.use(ids.k_norm, WeightForm::plain, c.stream);
      const parallel::HeadSums sums =
          state.qk_squares_T2.defined() ? parallel::HeadSums::kept : parallel::HeadSums::made;
      // Kept together with the projection, so that the sum over tp is not repeated if that is kept.
      if (sums == parallel::HeadSums::made && parallel::sums_heads(c.tp, q.tensor(), qk_norm_span(c.model)))
        state.qk_squares_T2 =
            arenas.gemms_to_backward.take(DType::f32, {c.batch.tokens(), 2}, MemoryTerm::activations);
      parallel::qk_norm_rope_forward(c.tp, c.stream,
                                     {.heads = heads,
                                      .qkv_in = state.projected,
                                      .qkv_out = state.qkv,
                                      .positions_T = c.batch.positions_T,
                                      .rope_table_SR = rope_table(c, ids),
                                      .span = qk_norm_span(c.model),
                                      .q_weight_E = q.tensor(),
                                      .k_weight_E = k.tensor(),
                                      .weight_offset = weight_offset(c.model),
                                      .eps = static_cast<float>(c.model.norm_eps),
                                      .squares_T2 = state.qk_squares_T2},
                                     sums);
    }
  }
  if (state.attended.defined()) return;
  attend(c, ids, arenas, state);
}

bool adds_to_flow(const WalkContext& c, const LayerParams& ids, Segment::Kind half) {
  const LinearParams& norm = half == Segment::Kind::mlp ? ids.mlp_post_norm : ids.attn_post_norm;
  return c.backend().target().adds_in_products && c.tp.group.size() == 1 && norm.weight == kNoParam &&
         !(half == Segment::Kind::mlp && has_experts(ids)) && c.model.dropout.residual == 0 &&
         c.model.residual_scale == 1;
}

namespace {

Flow flow_behind(const SegmentState& state, const OutputPlace& to) {
  return to.sum_TD.defined() ? Flow{to.sum_TD, {}} : Flow{state.sum_TD, to.delta_TD};
}

}  // namespace

void attention_output(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                      SegmentState& state, const OutputPlace& to) {
  if (to.sum_TD.defined()) return attn_out_of(c, ids).forward(state.attended, to.sum_TD, state.sum_TD);
  attn_out_of(c, ids).forward(state.attended,
                              output_place(c, ids.attn_post_norm, arenas, state, to.delta_TD));
  post_norm_forward(c, ids.attn_post_norm, state, to.delta_TD);
  finish_contribution(c, ids, Segment::Kind::attention, to.delta_TD);
}

Flow attention_forward(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                       SegmentState& state, const Flow& in, const OutputPlace& to) {
  attention_state(c, ids, arenas, state, in);
  attention_output(c, ids, arenas, state, to);
  return flow_behind(state, to);
}

Tensor attention_gradient(const WalkContext& c, Arena& arena) {
  return activation(c, arena, heads_of(c).columns());
}

void attention_backward_input(const WalkContext& c, const LayerParams& ids, Frame& frame, SegmentState& state,
                              const Tensor& dflow_TD, const Tensor& dx_TD, BackwardMode backward) {
  const HeadGeometry heads = heads_of(c);
  const Tensor dout_TD =
      output_gradient(c, ids.attn_post_norm, frame, state,
                      contribution_gradient(c, ids, Segment::Kind::attention, frame, state, dflow_TD));
  const ArenaScope gradient(c.stream.scratch());
  // Weight gradients read it later, except with latent attention.
  if (!state.dqkv.defined())
    state.dqkv = attention_gradient(c, ids.latent.present() ? c.stream.scratch() : *frame.grads);
  {
    const ArenaScope scope(c.stream.scratch());
    const Tensor dattended = activation(c, c.stream.scratch(), heads.output_columns());
    attn_out_of(c, ids).backward_input(dout_TD, state.attended, dattended, backward);
    attend_backward(c, ids, state, dattended);
  }
  if (ids.latent.present()) {
    latent_backward_input(c, ids, rope_table(c, ids), frame, state, dx_TD, backward);
    norm_backward(c, ids.attn_norm, state, dx_TD, dflow_TD, dx_TD);
    return;
  }
  if (rope_table(c, ids).defined() || c.model.qk_norm) {
    const Lease q = c.params.use(ids.q_norm, WeightForm::plain, c.stream);
    const Lease k = c.params.use(ids.k_norm, WeightForm::plain, c.stream);
    const ArenaScope scope(c.stream.scratch());
    const VectorGrads grads = vector_grads(c, ids.q_norm, ids.k_norm);
    parallel::qk_norm_rope_backward(c.tp, c.stream,
                                    {.heads = heads,
                                     .qkv_in = state.projected,
                                     .dqkv = state.dqkv,
                                     .positions_T = c.batch.positions_T,
                                     .rope_table_SR = rope_table(c, ids),
                                     .span = qk_norm_span(c.model),
                                     .q_weight_E = q.tensor(),
                                     .k_weight_E = k.tensor(),
                                     .weight_offset = weight_offset(c.model),
                                     .eps = static_cast<float>(c.model.norm_eps),
                                     .dq_weight_E = grads.first,
                                     .dk_weight_E = grads.second,
                                     .mode = grads.mode,
                                     .squares_T2 = state.qk_squares_T2});
  }
  qkv_of(c, ids).backward_input(state.dqkv, state.y_TD, dx_TD, backward);
  norm_backward(c, ids.attn_norm, state, dx_TD, dflow_TD, dx_TD);
}

void attention_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                               const Tensor& dflow_TD) {
  attn_out_of(c, ids).backward_weight(state.dout_TD.defined() ? state.dout_TD : dflow_TD, state.attended);
  if (ids.latent.present()) latent_backward_weight(c, ids, state);
  else qkv_of(c, ids).backward_weight(state.dqkv, state.y_TD);
}

// ---- MLP

Gate gate_of(const job::ModelOptions& m) {
  if (m.mlp == job::Mlp::swiglu_clamped) return Gate::clamped;
  return m.mlp == job::Mlp::geglu ? Gate::gelu : Gate::silu;
}

namespace {

/// The up projection and the activation. With a gate the activation is in scratch, in the caller's scope:
/// backward recomputes it, since it reads gate and up anyway.
void mlp_up(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
            SegmentState& state) {
  const bool gated = job::gated(c.model.mlp);
  const bool fresh = !state.up.defined();
  if (fresh) state.up = activation(c, arenas.gemms_to_weight, gated ? 2 * c.local.ffn : c.local.ffn);
  state.act = activation(c, gated ? c.stream.scratch() : arenas.cheap_to_weight, c.local.ffn);
  if (fresh && gated) return up_of(c, ids).forward_gated(gate_of(c.model), state.y_TD, state.up, state.act);
  if (fresh) up_of(c, ids).forward(state.y_TD, state.up);
  if (gated)
    c.backend().glu_forward(c.stream,
                            {.gate = gate_of(c.model), .gate_up_T2F = state.up, .act_TF = state.act});
  else c.backend().gelu_forward(c.stream, {.x_TF = state.up, .act_TF = state.act});
}

}  // namespace

Flow mlp_forward(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                 SegmentState& state, const Flow& in, const OutputPlace& to) {
  if (has_experts(ids)) return experts_forward(c, ids, arenas, state, in, to);
  norm_forward(c, ids.mlp_norm, arenas, state, in);
  const ArenaScope scope(c.stream.scratch());
  mlp_up(c, ids, arenas, state);
  if (to.sum_TD.defined()) {
    down_of(c, ids).forward(state.act, to.sum_TD, state.sum_TD);
  } else {
    down_of(c, ids).forward(state.act, output_place(c, ids.mlp_post_norm, arenas, state, to.delta_TD));
    post_norm_forward(c, ids.mlp_post_norm, state, to.delta_TD);
    finish_contribution(c, ids, Segment::Kind::mlp, to.delta_TD);
  }
  return flow_behind(state, to);
}

void mlp_recompute(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                   SegmentState& state, const Flow& in) {
  if (has_experts(ids)) return experts_recompute(c, ids, arenas, state, in);
  if (!state.y_TD.defined()) norm_forward(c, ids.mlp_norm, arenas, state, in);
  const bool out = ids.mlp_post_norm.weight != kNoParam && !state.out_TD.defined();
  // With a gate, backward recomputes the activation together with the gradient.
  if (job::gated(c.model.mlp) && state.up.defined() && !out) return;
  const Tensor place = out ? output_place(c, ids.mlp_post_norm, arenas, state, {}) : Tensor{};
  const ArenaScope scope(c.stream.scratch());
  mlp_up(c, ids, arenas, state);
  if (!out) return;
  down_of(c, ids).forward(state.act, place);
  // Only its statistics are needed; the contribution itself is not read.
  post_norm_forward(c, ids.mlp_post_norm, state, flow(c, c.stream.scratch()));
}

void mlp_backward_input(const WalkContext& c, const LayerParams& ids, Frame& frame, SegmentState& state,
                        const Tensor& dflow_TD, const Tensor& dx_TD, const LossTarget& loss,
                        BackwardMode backward) {
  if (has_experts(ids)) return experts_backward_input(c, ids, frame, state, dflow_TD, dx_TD, loss, backward);
  const Tensor dout_TD =
      output_gradient(c, ids.mlp_post_norm, frame, state,
                      contribution_gradient(c, ids, Segment::Kind::mlp, frame, state, dflow_TD));
  if (job::gated(c.model.mlp)) {
    state.act = activation(c, *frame.grads, c.local.ffn);
    down_of(c, ids).backward_input_gated(gate_of(c.model), dout_TD, state.up, state.up, state.act, backward);
  } else {
    const ArenaScope scope(c.stream.scratch());
    const Tensor dact = activation(c, c.stream.scratch(), c.local.ffn);
    down_of(c, ids).backward_input(dout_TD, state.act, dact, backward);
    c.backend().gelu_backward(c.stream, {.dact_TF = dact, .x_TF = state.up, .dx_TF = state.up});
  }
  up_of(c, ids).backward_input(state.up, state.y_TD, dx_TD, backward);
  norm_backward(c, ids.mlp_norm, state, dx_TD, dflow_TD, dx_TD);
}

void mlp_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                         const Tensor& dflow_TD) {
  if (has_experts(ids)) return experts_backward_weight(c, ids, state, dflow_TD);
  down_of(c, ids).backward_weight(state.dout_TD.defined() ? state.dout_TD : dflow_TD, state.act);
  up_of(c, ids).backward_weight(state.up, state.y_TD);
}

// ---- Head

namespace {

/// The logits are divided by scaling the head's input.
float head_scale(const WalkContext& c) { return static_cast<float>(1.0 / c.model.logit_divisor); }

}  // namespace

void head_forward(const WalkContext& c, const ActivationArenas& arenas, SegmentState& state, const Flow& in) {
  norm_forward(c, c.ids.final_norm, arenas, state, in);
  scale_in_place(c, state.y_TD, head_scale(c));
}

void head_logits(const WalkContext& c, const SegmentState& state, std::int64_t row, const Tensor& logits_1V) {
  base::check(c.tp.group.size() == 1, "scores are of a whole vocabulary");
  const Lease fprop = c.params.use(c.ids.head, WeightForm::fprop, c.stream);
  c.backend().linear_fprop(c.stream, {.x_TC = state.y_TD.rows(row, 1),
                                      .weight = fprop.weight(),
                                      .bias_N = {},
                                      .addend_TN = {},
                                      .y_TN = logits_1V});
}

void head_loss(const WalkContext& c, const SegmentState& state, const LossTarget& loss) {
  const Lease fprop = c.params.use(c.ids.head, WeightForm::fprop, c.stream);
  parallel::vocab_parallel_head_loss(c.tp, c.stream, head_arguments(c, state, loss, fprop.weight()));
}

void head_backward(const WalkContext& c, const SegmentState& state, const LossTarget& loss,
                   const Tensor& dx_TD) {
  {
    const Lease fprop = c.params.use(c.ids.head, WeightForm::fprop, c.stream);
    const Lease dgrad = c.params.use(c.ids.head, WeightForm::dgrad, c.stream);
    parallel::HeadLoss a = head_arguments(c, state, loss, fprop.weight());
    a.dgrad = dgrad.weight();
    a.dy_TD = dx_TD;
    if (trainable(c, c.ids.head)) {
      a.dweight_VD = c.params.grad(c.ids.head);
      a.mode = c.params.grad_mode(c.ids.head);
    }
    parallel::vocab_parallel_head_loss(c.tp, c.stream, a);
  }
  scale_in_place(c, dx_TD, head_scale(c));
  norm_backward(c, c.ids.final_norm, state, dx_TD, {}, dx_TD);
}

}  // namespace trainerd::core::model
