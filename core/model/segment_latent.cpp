#include "core/model/segment_latent.h"

#include "core/model/linear.h"
#include "core/model/segment_attention.h"
#include "core/model/segment_norms.h"
#include "parallel/tensor/latent.h"

namespace trainerd::core::model {

using namespace kernels;

namespace {

/// Epsilon of the latents' norms. It is not a field of the configuration: DeepSeek's code and transformers
/// use this default.
constexpr float kLatentNormEps = 1e-6f;

/// Columns of the output of LatentParams::down.
struct DownColumns {
  std::int64_t q, kv, k_rope;
  std::int64_t all() const { return q + kv + k_rope; }
};
DownColumns down_columns(const job::ModelOptions& m) {
  return {m.mla.q_lora_rank, m.mla.kv_lora_rank, m.mla.qk_rope_head_dim};
}

Linear latent_down_of(const WalkContext& c, const LayerParams& ids) {
  return {c, ids.latent.down, LinearSplit::whole};
}
Linear latent_q_of(const WalkContext& c, const LayerParams& ids) {
  return {c, ids.latent.q, LinearSplit::latent};
}
Linear latent_kv_of(const WalkContext& c, const LayerParams& ids) {
  return {c, ids.latent.kv, LinearSplit::latent};
}

/// One row per token of a flow.
Tensor latent_flow(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {c.tp.flow_rows(c.batch.tokens()), columns}, MemoryTerm::activations);
}
Tensor all_tokens(const WalkContext& c, Arena& arena, std::int64_t columns) {
  return arena.take(c.dtype, {c.batch.tokens(), columns}, MemoryTerm::activations);
}
/// Columns of the output of LatentParams::kv on this rank.
std::int64_t kv_columns(const WalkContext& c) {
  return c.local.heads * (c.model.mla.qk_nope_head_dim + c.model.mla.v_head_dim);
}

/// Computes the latents and the shared key elements, each into its own tensor.
void make_latents(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
                  SegmentState& state) {
  const DownColumns columns = down_columns(c.model);
  if (columns.q > 0) state.q_latent.raw_TL = latent_flow(c, arenas.gemms_to_backward, columns.q);
  state.kv_latent.raw_TL = latent_flow(c, arenas.gemms_to_backward, columns.kv);
  state.k_rope_TR = latent_flow(c, arenas.gemms_to_backward, columns.k_rope);
  const ArenaScope scope(c.stream.scratch());
  const Tensor merged = latent_flow(c, c.stream.scratch(), columns.all());
  latent_down_of(c, ids).forward(state.y_TD, merged);
  std::int64_t column = 0;
  for (const Tensor& part : {state.q_latent.raw_TL, state.kv_latent.raw_TL, state.k_rope_TR}) {
    if (!part.defined()) continue;
    c.backend().copy_rows(c.stream,
                          {.in = merged, .out = part, .columns = part.size(1), .in_column = column});
    column += part.size(1);
  }
}

void normalise(const WalkContext& c, ParamId norm, const ActivationArenas& arenas, LatentState& latent) {
  latent.rstd_T = statistic(c, arenas.cheap_to_backward);
  latent.normed_TL = latent_flow(c, arenas.cheap_to_weight, latent.raw_TL.size(1));
  const Lease weight = c.params.use(norm, WeightForm::plain, c.stream);
  c.backend().add_norm_forward(c.stream, {.kind = NormKind::rms,
                                          .eps = kLatentNormEps,
                                          .residual_TD = latent.raw_TL,
                                          .delta_TD = {},
                                          .weight_D = weight.tensor(),
                                          .weight_offset = weight_offset(c.model),
                                          .bias_D = {},
                                          .sum_TD = latent.raw_TL,
                                          .y_TD = latent.normed_TL,
                                          .mean_T = {},
                                          .rstd_T = latent.rstd_T});
}

/// In place: `dlatent_TL` is the gradient of the norm's output, then of its input.
void normalise_backward(const WalkContext& c, ParamId norm, const LatentState& latent,
                        const Tensor& dlatent_TL) {
  const ArenaScope scope(c.stream.scratch());
  const Lease weight = c.params.use(norm, WeightForm::plain, c.stream);
  const VectorGrads grads = vector_grads(c, norm, kNoParam);
  c.backend().add_norm_backward(c.stream, {.kind = NormKind::rms,
                                           .dy_TD = dlatent_TL,
                                           .dsum_TD = {},
                                           .sum_TD = latent.raw_TL,
                                           .weight_D = weight.tensor(),
                                           .weight_offset = weight_offset(c.model),
                                           .mean_T = {},
                                           .rstd_T = latent.rstd_T,
                                           .dx_TD = dlatent_TL,
                                           .dweight_D = grads.first,
                                           .dbias_D = {},
                                           .mode = grads.mode});
}

/// Input of the queries' projection.
const Tensor& q_input(const SegmentState& state) {
  return state.q_latent.raw_TL.defined() ? state.q_latent.normed_TL : state.y_TD;
}

}  // namespace

void latent_state(const WalkContext& c, const LayerParams& ids, const Tensor& rope_table_SR,
                  const ActivationArenas& arenas, SegmentState& state) {
  if (!state.kv_latent.raw_TL.defined()) make_latents(c, ids, arenas, state);
  if (state.qkv.defined()) return;
  if (state.q_latent.raw_TL.defined()) normalise(c, ids.latent.q_norm, arenas, state.q_latent);
  normalise(c, ids.latent.kv_norm, arenas, state.kv_latent);
  const HeadGeometry heads = heads_of(c);
  state.qkv = all_tokens(c, arenas.cheap_to_backward, heads.columns());
  const ArenaScope scope(c.stream.scratch());
  const Tensor q = all_tokens(c, c.stream.scratch(), heads.query_columns()),
               kv = all_tokens(c, c.stream.scratch(), kv_columns(c));
  latent_q_of(c, ids).forward(q_input(state), q);
  latent_kv_of(c, ids).forward(state.kv_latent.normed_TL, kv);
  parallel::latent_heads_forward(c.tp, c.stream,
                                 {.heads = heads,
                                  .q_TC = q,
                                  .kv_TC = kv,
                                  .k_rope_TR = state.k_rope_TR,
                                  .positions_T = c.batch.positions_T,
                                  .rope_table_SR = rope_table_SR,
                                  .qkv = state.qkv});
}

void latent_backward_input(const WalkContext& c, const LayerParams& ids, const Tensor& rope_table_SR,
                           Frame& frame, SegmentState& state, const Tensor& dx_TD, BackwardMode backward) {
  const HeadGeometry heads = heads_of(c);
  const DownColumns columns = down_columns(c.model);
  state.dq_TC = all_tokens(c, *frame.grads, heads.query_columns());
  state.dkv_TC = all_tokens(c, *frame.grads, kv_columns(c));
  state.ddown_TC = latent_flow(c, *frame.grads, columns.all());
  const ArenaScope scope(c.stream.scratch());
  Tensor dq_latent;
  if (columns.q > 0) dq_latent = latent_flow(c, c.stream.scratch(), columns.q);
  const Tensor dkv_latent = latent_flow(c, c.stream.scratch(), columns.kv),
               dk_rope = latent_flow(c, c.stream.scratch(), columns.k_rope);
  parallel::latent_heads_backward(c.tp, c.stream,
                                  {.heads = heads,
                                   .dqkv = state.dqkv,
                                   .positions_T = c.batch.positions_T,
                                   .rope_table_SR = rope_table_SR,
                                   .dq_TC = state.dq_TC,
                                   .dkv_TC = state.dkv_TC,
                                   .dk_rope_TR = dk_rope});
  latent_q_of(c, ids).backward_input(state.dq_TC, q_input(state), columns.q > 0 ? dq_latent : dx_TD,
                                     backward);
  latent_kv_of(c, ids).backward_input(state.dkv_TC, state.kv_latent.normed_TL, dkv_latent, backward);
  if (columns.q > 0) normalise_backward(c, ids.latent.q_norm, state.q_latent, dq_latent);
  normalise_backward(c, ids.latent.kv_norm, state.kv_latent, dkv_latent);
  std::int64_t column = 0;
  for (const Tensor& part : {dq_latent, dkv_latent, dk_rope}) {
    if (!part.defined()) continue;
    c.backend().copy_rows(c.stream,
                          {.in = part, .out = state.ddown_TC, .columns = part.size(1), .out_column = column});
    column += part.size(1);
  }
  latent_down_of(c, ids).backward_input(state.ddown_TC, state.y_TD, dx_TD, backward,
                                        columns.q > 0 ? WriteMode::assign : WriteMode::accumulate);
}

void latent_backward_weight(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  latent_q_of(c, ids).backward_weight(state.dq_TC, q_input(state));
  latent_kv_of(c, ids).backward_weight(state.dkv_TC, state.kv_latent.normed_TL);
  latent_down_of(c, ids).backward_weight(state.ddown_TC, state.y_TD);
}

}  // namespace trainerd::core::model
