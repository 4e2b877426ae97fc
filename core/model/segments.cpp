#include "core/model/segments.h"

#include <cmath>
#include <optional>

namespace trainerd::core {
namespace {

using namespace kernels;

NormKind norm_kind(const ModelOptions& m) { return m.norm == Norm::rms ? NormKind::rms : NormKind::layer; }

HeadGeometry heads_of(const WalkContext& c) { return {c.local.heads, c.local.kv_heads, c.model.head_dim}; }

float attention_scale(const ModelOptions& m) { return 1.0f / std::sqrt(static_cast<float>(m.head_dim)); }

/// The batch's sequences, each whole.
AttentionBlock attention_block(const WalkContext& c) {
  return whole_sequences(heads_of(c), attention_scale(c.model), c.batch.cu_seqlens, c.batch.max_seqlen);
}

Tensor activation(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {c.batch.tokens(), columns}, MemoryTerm::activations);
}

/// What flows between segments, or is made of it row by row: with sequence parallelism, this rank's rows.
Tensor flow(const WalkContext& c, Arena& arena) {
  return arena.take(c.dtype, {c.tp.flow_rows(c.batch.tokens()), c.model.hidden}, MemoryTerm::activations);
}

Tensor statistic(const WalkContext& c, Arena& arena) {
  return arena.take(DType::f32, {c.tp.flow_rows(c.batch.tokens())}, MemoryTerm::activations);
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
  a.grad_scale = loss.grad_scale;
  a.loss_T = loss.loss_T;
  return a;
}

}  // namespace

void norm_forward(const WalkContext& c, const LinearParams& norm, const Homes& homes, SegmentState& state,
                  const Flow& in) {
  // Without a delta the sum is the residual itself, which its producer keeps.
  if (!state.sum_TD.defined()) state.sum_TD = in.delta_TD.defined() ? flow(c, homes.sum) : in.residual_TD;
  state.rstd_T = statistic(c, homes.cheap_to_backward);
  if (c.model.norm == Norm::layer) state.mean_T = statistic(c, homes.cheap_to_backward);
  state.y_TD = flow(c, homes.cheap_to_weight);
  const Lease weight = c.params.use(norm.weight, WeightForm::plain, c.stream);
  const Lease bias = c.params.use(norm.bias, WeightForm::plain, c.stream);
  c.backend().add_norm_forward(c.stream, {.kind = norm_kind(c.model),
                                          .eps = static_cast<float>(c.model.norm_eps),
                                          .residual_TD = in.residual_TD,
                                          .delta_TD = in.delta_TD,
                                          .weight_D = weight.tensor(),
                                          .bias_D = bias.tensor(),
                                          .sum_TD = state.sum_TD,
                                          .y_TD = state.y_TD,
                                          .mean_T = state.mean_T,
                                          .rstd_T = state.rstd_T});
}

void norm_backward(const WalkContext& c, const LinearParams& norm, const SegmentState& state,
                   const Tensor& dy_TD, const Tensor& dsum_TD, const Tensor& dx_TD) {
  const Lease weight = c.params.use(norm.weight, WeightForm::plain, c.stream);
  const WriteMode mode = c.params.grad_mode(norm.weight);
  if (norm.bias != kNoParam)
    base::check(c.params.grad_mode(norm.bias) == mode, "a norm's weight and bias get gradients together");
  c.backend().add_norm_backward(c.stream, {.kind = norm_kind(c.model),
                                           .dy_TD = dy_TD,
                                           .dsum_TD = dsum_TD,
                                           .sum_TD = state.sum_TD,
                                           .weight_D = weight.tensor(),
                                           .mean_T = state.mean_T,
                                           .rstd_T = state.rstd_T,
                                           .dx_TD = dx_TD,
                                           .dweight_D = c.params.grad(norm.weight),
                                           .dbias_D = c.params.grad(norm.bias),
                                           .mode = mode});
}

LinearWgrad weight_gradient(const WalkContext& c, const LinearParams& linear, const Tensor& dy_TN,
                            const Tensor& x_TC) {
  const WriteMode mode = c.params.grad_mode(linear.weight);
  if (linear.bias != kNoParam)
    base::check(c.params.grad_mode(linear.bias) == mode, "a weight and its bias get gradients together");
  return {.dy_TN = dy_TN,
          .x_TC = x_TC,
          .dweight_NC = c.params.grad(linear.weight),
          .dbias_N = c.params.grad(linear.bias),
          .mode = mode};
}

// ---- Embedding
// -------------------------------------------------------------------------------------------------

Flow embedding_forward(const WalkContext& c, const Homes& homes, SegmentState& state) {
  state.sum_TD = flow(c, homes.sum);
  const Lease table = c.params.use(c.ids.embedding, WeightForm::plain, c.stream);
  const Lease positions = c.params.use(c.ids.positions, WeightForm::plain, c.stream);
  parallel::vocab_parallel_embedding(c.tp, c.stream,
                                     {.tokens_T = c.batch.tokens_T,
                                      .table_VD = table.tensor(),
                                      .first_row = c.local.first_vocab_row,
                                      .positions_T = c.batch.positions_T,
                                      .positions_table_SD = positions.tensor(),
                                      .out_TD = state.sum_TD});
  return {state.sum_TD, {}};
}

void embedding_backward_weight(const WalkContext& c, const Tensor& dflow_TD) {
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
// -------------------------------------------------------------------------------------------------

void attention_state(const WalkContext& c, const LayerParams& ids, const Homes& homes, SegmentState& state,
                     const Flow& in) {
  const HeadGeometry heads = heads_of(c);
  if (!state.y_TD.defined()) norm_forward(c, ids.attn_norm, homes, state, in);
  if (!state.projected.defined()) {
    state.projected = activation(c, homes.gemms_to_backward, heads.columns());
    const Lease weight = c.params.use(ids.qkv.weight, WeightForm::fprop, c.stream);
    const Lease bias = c.params.use(ids.qkv.bias, WeightForm::plain, c.stream);
    parallel::column_linear(c.tp, c.stream,
                            {.x_TC = state.y_TD,
                             .weight = weight.weight(),
                             .bias_N = bias.tensor(),
                             .addend_TN = {},
                             .y_TN = state.projected});
  }
  if (!state.qkv.defined()) {
    // The heads' norm forgets its input, so its output lies beside it; rotation alone is done in place.
    state.qkv = c.model.qk_norm ? activation(c, homes.cheap_to_backward, heads.columns()) : state.projected;
    if (c.rope_table_SE.defined() || c.model.qk_norm) {
      const Lease q = c.params.use(ids.q_norm, WeightForm::plain, c.stream);
      const Lease k = c.params.use(ids.k_norm, WeightForm::plain, c.stream);
      c.backend().qk_norm_rope_forward(c.stream, {.heads = heads,
                                                  .qkv_in = state.projected,
                                                  .qkv_out = state.qkv,
                                                  .positions_T = c.batch.positions_T,
                                                  .rope_table_SE = c.rope_table_SE,
                                                  .q_weight_E = q.tensor(),
                                                  .k_weight_E = k.tensor(),
                                                  .eps = static_cast<float>(c.model.norm_eps)});
    }
  }
  if (state.attended.defined()) return;
  state.attended = activation(c, homes.cheap_to_weight, heads.heads * heads.head_size);
  state.lse_HT =
      homes.cheap_to_backward.take(DType::f32, {heads.heads, c.batch.tokens()}, MemoryTerm::activations);
  c.backend().attention_forward(c.stream, {.block = attention_block(c),
                                           .q_THE = heads.queries_of(state.qkv),
                                           .k_TKE = heads.keys_of(state.qkv),
                                           .v_TKE = heads.values_of(state.qkv),
                                           .out_THE = heads.outputs_of(state.attended),
                                           .lse_HT = state.lse_HT});
}

void attention_output(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                      const Tensor& delta_TD) {
  const Lease weight = c.params.use(ids.attn_out.weight, WeightForm::fprop, c.stream);
  const Lease bias = c.params.use(ids.attn_out.bias, WeightForm::plain, c.stream);
  parallel::row_linear(c.tp, c.stream,
                       {.x_TC = state.attended,
                        .weight = weight.weight(),
                        .bias_N = bias.tensor(),
                        .addend_TN = {},
                        .y_TN = delta_TD});
}

Flow attention_forward(const WalkContext& c, const LayerParams& ids, const Homes& homes, SegmentState& state,
                       const Flow& in, const Tensor& delta_TD) {
  attention_state(c, ids, homes, state, in);
  attention_output(c, ids, state, delta_TD);
  return {state.sum_TD, delta_TD};
}

namespace {

/// Of the projection that closes a segment, where the weights' walk is not apart.
std::optional<LinearWgrad> closing_wgrad(const WalkContext& c, const LinearParams& ids,
                                         const Tensor& dflow_TD, const Tensor& x_TC, Walks walks) {
  if (walks == Walks::apart) return std::nullopt;
  return weight_gradient(c, ids, dflow_TD, x_TC);
}

/// Of the projection that opens a segment, likewise.
void opening_backward(const WalkContext& c, const LinearParams& ids, const LinearDgrad& dgrad,
                      const Tensor& x_TC, Walks walks) {
  if (walks == Walks::apart) parallel::column_linear_dgrad(c.tp, c.stream, dgrad);
  else
    parallel::column_linear_backward(c.tp, c.stream, dgrad, weight_gradient(c, ids, dgrad.dy_TN.data, x_TC));
}

}  // namespace

void attention_backward_input(const WalkContext& c, const LayerParams& ids, Frame& frame, SegmentState& state,
                              const Tensor& dflow_TD, const Tensor& dx_TD, Walks walks) {
  const HeadGeometry heads = heads_of(c);
  state.dqkv = activation(c, *frame.grads, heads.columns());
  {
    const ArenaScope scope(c.stream.scratch());
    const Tensor dattended = activation(c, c.stream.scratch(), heads.heads * heads.head_size);
    const Lease weight = c.params.use(ids.attn_out.weight, WeightForm::dgrad, c.stream);
    parallel::row_linear_dgrad(c.tp, c.stream,
                               {.dy_TN = dflow_TD, .weight = weight.weight(), .dx_TC = dattended},
                               closing_wgrad(c, ids.attn_out, dflow_TD, state.attended, walks));
    c.backend().attention_backward(c.stream, {.block = attention_block(c),
                                              .determinism = c.attention,
                                              .q_THE = heads.queries_of(state.qkv),
                                              .k_TKE = heads.keys_of(state.qkv),
                                              .v_TKE = heads.values_of(state.qkv),
                                              .out_THE = heads.outputs_of(state.attended),
                                              .lse_HT = state.lse_HT,
                                              .dout_THE = heads.outputs_of(dattended),
                                              .dq_THE = heads.queries_of(state.dqkv),
                                              .dk_TKE = heads.keys_of(state.dqkv),
                                              .dv_TKE = heads.values_of(state.dqkv)});
  }
  if (c.rope_table_SE.defined() || c.model.qk_norm) {
    const Lease q = c.params.use(ids.q_norm, WeightForm::plain, c.stream);
    const Lease k = c.params.use(ids.k_norm, WeightForm::plain, c.stream);
    WriteMode mode = WriteMode::accumulate;
    if (c.model.qk_norm) {
      mode = c.params.grad_mode(ids.q_norm);
      base::check(c.params.grad_mode(ids.k_norm) == mode, "query and key norms get gradients together");
    }
    c.backend().qk_norm_rope_backward(c.stream, {.heads = heads,
                                                 .qkv_in = state.projected,
                                                 .dqkv = state.dqkv,
                                                 .positions_T = c.batch.positions_T,
                                                 .rope_table_SE = c.rope_table_SE,
                                                 .q_weight_E = q.tensor(),
                                                 .k_weight_E = k.tensor(),
                                                 .eps = static_cast<float>(c.model.norm_eps),
                                                 .dq_weight_E = c.params.grad(ids.q_norm),
                                                 .dk_weight_E = c.params.grad(ids.k_norm),
                                                 .mode = mode});
  }
  const Lease weight = c.params.use(ids.qkv.weight, WeightForm::dgrad, c.stream);
  opening_backward(c, ids.qkv, {.dy_TN = state.dqkv, .weight = weight.weight(), .dx_TC = dx_TD}, state.y_TD,
                   walks);
  norm_backward(c, ids.attn_norm, state, dx_TD, dflow_TD, dx_TD);
}

void attention_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                               const Tensor& dflow_TD) {
  parallel::row_linear_wgrad(c.tp, c.stream, weight_gradient(c, ids.attn_out, dflow_TD, state.attended));
  parallel::column_linear_wgrad(c.tp, c.stream, weight_gradient(c, ids.qkv, state.dqkv, state.y_TD));
}

// ---- MLP
// -------------------------------------------------------------------------------------------------------

namespace {

/// The up projection and the activation. With SwiGLU the activation is in scratch, for the caller's scope:
/// backward makes it again, where it reads gate and up anyway.
void mlp_up(const WalkContext& c, const LayerParams& ids, const Homes& homes, SegmentState& state) {
  const bool swiglu = c.model.mlp == Mlp::swiglu;
  const bool fresh = !state.up.defined();
  if (fresh) state.up = activation(c, homes.gemms_to_weight, swiglu ? 2 * c.local.ffn : c.local.ffn);
  state.act = activation(c, swiglu ? c.stream.scratch() : homes.cheap_to_weight, c.local.ffn);
  if (fresh) {
    const Lease weight = c.params.use(ids.up.weight, WeightForm::fprop, c.stream);
    const Lease bias = c.params.use(ids.up.bias, WeightForm::plain, c.stream);
    if (swiglu && ids.up.bias == kNoParam) {
      parallel::column_linear_swiglu(
          c.tp, c.stream,
          {.x_TC = state.y_TD, .weight = weight.weight(), .gate_up_T2F = state.up, .act_TF = state.act});
      return;
    }
    parallel::column_linear(c.tp, c.stream,
                            {.x_TC = state.y_TD,
                             .weight = weight.weight(),
                             .bias_N = bias.tensor(),
                             .addend_TN = {},
                             .y_TN = state.up});
  }
  if (swiglu) c.backend().glu_forward(c.stream, {.gate_up_T2F = state.up, .act_TF = state.act});
  else c.backend().gelu_forward(c.stream, {.x_TF = state.up, .act_TF = state.act});
}

}  // namespace

Flow mlp_forward(const WalkContext& c, const LayerParams& ids, const Homes& homes, SegmentState& state,
                 const Flow& in, const Tensor& delta_TD) {
  norm_forward(c, ids.mlp_norm, homes, state, in);
  const ArenaScope scope(c.stream.scratch());
  mlp_up(c, ids, homes, state);
  const Lease weight = c.params.use(ids.down.weight, WeightForm::fprop, c.stream);
  const Lease bias = c.params.use(ids.down.bias, WeightForm::plain, c.stream);
  parallel::row_linear(c.tp, c.stream,
                       {.x_TC = state.act,
                        .weight = weight.weight(),
                        .bias_N = bias.tensor(),
                        .addend_TN = {},
                        .y_TN = delta_TD});
  return {state.sum_TD, delta_TD};
}

void mlp_recompute(const WalkContext& c, const LayerParams& ids, const Homes& homes, SegmentState& state,
                   const Flow& in) {
  if (!state.y_TD.defined()) norm_forward(c, ids.mlp_norm, homes, state, in);
  // With SwiGLU the activation comes with the gradient.
  if (c.model.mlp == Mlp::swiglu && state.up.defined()) return;
  const ArenaScope scope(c.stream.scratch());
  mlp_up(c, ids, homes, state);
}

void mlp_backward_input(const WalkContext& c, const LayerParams& ids, Frame& frame, SegmentState& state,
                        const Tensor& dflow_TD, const Tensor& dx_TD, Walks walks) {
  {
    const Lease weight = c.params.use(ids.down.weight, WeightForm::dgrad, c.stream);
    if (c.model.mlp == Mlp::swiglu) {
      state.act = activation(c, *frame.grads, c.local.ffn);
      parallel::row_linear_dgrad_swiglu(c.tp, c.stream,
                                        {.dy_TD = dflow_TD,
                                         .weight = weight.weight(),
                                         .gate_up_T2F = state.up,
                                         .dgate_up_T2F = state.up,
                                         .act_TF = state.act},
                                        closing_wgrad(c, ids.down, dflow_TD, state.act, walks));
    } else {
      const ArenaScope scope(c.stream.scratch());
      const Tensor dact = activation(c, c.stream.scratch(), c.local.ffn);
      parallel::row_linear_dgrad(c.tp, c.stream,
                                 {.dy_TN = dflow_TD, .weight = weight.weight(), .dx_TC = dact},
                                 closing_wgrad(c, ids.down, dflow_TD, state.act, walks));
      c.backend().gelu_backward(c.stream, {.dact_TF = dact, .x_TF = state.up, .dx_TF = state.up});
    }
  }
  const Lease weight = c.params.use(ids.up.weight, WeightForm::dgrad, c.stream);
  opening_backward(c, ids.up, {.dy_TN = state.up, .weight = weight.weight(), .dx_TC = dx_TD}, state.y_TD,
                   walks);
  norm_backward(c, ids.mlp_norm, state, dx_TD, dflow_TD, dx_TD);
}

void mlp_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                         const Tensor& dflow_TD) {
  parallel::row_linear_wgrad(c.tp, c.stream, weight_gradient(c, ids.down, dflow_TD, state.act));
  parallel::column_linear_wgrad(c.tp, c.stream, weight_gradient(c, ids.up, state.up, state.y_TD));
}

// ---- Head
// ------------------------------------------------------------------------------------------------------

void head_forward(const WalkContext& c, const Homes& homes, SegmentState& state, const Flow& in) {
  norm_forward(c, c.ids.final_norm, homes, state, in);
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
    a.dweight_VD = c.params.grad(c.ids.head);
    a.mode = c.params.grad_mode(c.ids.head);
    parallel::vocab_parallel_head_loss(c.tp, c.stream, a);
  }
  norm_backward(c, c.ids.final_norm, state, dx_TD, {}, dx_TD);
}

}  // namespace trainerd::core
