#include "core/model/segment_attention.h"

#include <cmath>

#include "core/model/segment_norms.h"

namespace trainerd::core::model {

using namespace kernels;

HeadGeometry heads_of(const WalkContext& c) { return {c.local.heads, c.local.kv_heads, c.model.head_dim}; }

namespace {

float attention_scale(const job::ModelOptions& m) {
  if (m.attention.scale > 0) return static_cast<float>(m.attention.scale);
  const double scalar = m.attention.query_pre_attn_scalar;
  return 1.0f / std::sqrt(scalar > 0 ? static_cast<float>(scalar) : static_cast<float>(m.head_dim));
}

/// The queries of one call: the rows of a piece of the rank's share.
struct Piece {
  AttentionBlock block;
  std::int64_t first = 0, rows = 0;

  Tensor of(const Tensor& x_TC) const { return x_TC.rows(first, rows); }
};

Piece piece_of(const WalkContext& c, const LayerParams& ids, int piece) {
  const Batch& batch = c.batch;
  Piece p{.block =
              whole_sequences(heads_of(c), attention_scale(c.model), batch.cu_seqlens, batch.max_seqlen)};
  p.block.window = ids.options.window;
  p.block.softcap = static_cast<float>(c.model.attention.softcap);
  p.rows = batch.tokens() / batch.share.pieces();
  p.first = piece * p.rows;
  if (batch.share.whole()) return p;
  const auto at = static_cast<std::size_t>(piece);
  p.block.queries = {.cu_seqlens = batch.piece_seqlens[at],
                     .max_seqlen = batch.share.piece_rows(),
                     .first = batch.share.first(piece),
                     .first_B = batch.piece_first[at],
                     .first_bounds = batch.piece_first[at].defined()};
  return p;
}

/// What queries see: the rank's own keys and values, or those of all ranks, gathered in scratch.
struct Keys {
  HeadView keys, values;
};
Keys keys_of(const WalkContext& c, const Tensor& qkv) {
  const HeadGeometry heads = heads_of(c);
  if (c.batch.share.whole()) return {heads.keys_of(qkv), heads.values_of(qkv)};
  const parallel::KeysAndValues all = parallel::take_keys_and_values(c.cp, c.stream, heads, qkv, c.dtype);
  parallel::gather_keys_and_values(c.cp, c.backend(), c.stream, heads, qkv, c.batch.samples, all);
  return {all.keys(), all.values()};
}

Tensor lse_of(const SegmentState& state, const HeadGeometry& heads, int piece) {
  return state.lse_PHT.rows(piece * heads.heads, heads.heads);
}

}  // namespace

void attend(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
            SegmentState& state) {
  const HeadGeometry heads = heads_of(c);
  const int pieces = c.batch.share.pieces();
  const std::int64_t tokens = c.batch.tokens();
  state.attended =
      arenas.cheap_to_weight.take(c.dtype, {tokens, heads.heads * heads.head_size}, MemoryTerm::activations);
  state.lse_PHT = arenas.cheap_to_backward.take(DType::f32, {pieces * heads.heads, tokens / pieces},
                                                MemoryTerm::activations);
  const ArenaScope scope(c.stream.scratch());
  const Keys seen = keys_of(c, state.qkv);
  for (int i = 0; i < pieces; ++i) {
    const Piece piece = piece_of(c, ids, i);
    const HeadView out_THE = heads.outputs_of(piece.of(state.attended));
    const Tensor lse_HT = lse_of(state, heads, i);
    c.backend().attention_forward(c.stream, {.block = piece.block,
                                             .q_THE = heads.queries_of(piece.of(state.qkv)),
                                             .k_TKE = seen.keys,
                                             .v_TKE = seen.values,
                                             .out_THE = out_THE,
                                             .lse_HT = lse_HT});
    if (ids.sinks == kNoParam) continue;
    const Lease sinks = c.params.use(ids.sinks, WeightForm::plain, c.stream);
    c.backend().attention_sink_forward(c.stream,
                                       {.out_THE = out_THE, .lse_HT = lse_HT, .sinks_H = sinks.tensor()});
  }
}

void attend_backward(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                     const Tensor& dattended) {
  const HeadGeometry heads = heads_of(c);
  const bool whole = c.batch.share.whole();
  const ArenaScope scope(c.stream.scratch());
  const Keys seen = keys_of(c, state.qkv);
  // Two pieces of queries and all ranks add to the gradients of a key, so these are fp32.
  const parallel::KeysAndValues sums =
      whole ? parallel::KeysAndValues{}
            : parallel::take_keys_and_values(c.cp, c.stream, heads, state.qkv, DType::f32);
  const bool sinks_train = ids.sinks != kNoParam && trainable(c, ids.sinks);
  for (int i = 0; i < c.batch.share.pieces(); ++i) {
    const Piece piece = piece_of(c, ids, i);
    const HeadView out_THE = heads.outputs_of(piece.of(state.attended)),
                   dout_THE = heads.outputs_of(piece.of(dattended));
    const Tensor lse_HT = lse_of(state, heads, i);
    c.backend().attention_backward(c.stream,
                                   {.block = piece.block,
                                    .determinism = c.attention,
                                    .q_THE = heads.queries_of(piece.of(state.qkv)),
                                    .k_TKE = seen.keys,
                                    .v_TKE = seen.values,
                                    .out_THE = out_THE,
                                    .lse_HT = lse_HT,
                                    .dout_THE = dout_THE,
                                    .dq_THE = heads.queries_of(piece.of(state.dqkv)),
                                    .dk_TKE = whole ? heads.keys_of(state.dqkv) : sums.keys(),
                                    .dv_TKE = whole ? heads.values_of(state.dqkv) : sums.values(),
                                    .dkv_mode = i == 0 ? WriteMode::assign : WriteMode::accumulate});
    if (!sinks_train) continue;
    const Lease sinks = c.params.use(ids.sinks, WeightForm::plain, c.stream);
    const WriteMode mode = i == 0 ? c.params.grad_mode(ids.sinks) : WriteMode::accumulate;
    c.backend().attention_sink_backward(c.stream, {.out_THE = out_THE,
                                                   .dout_THE = dout_THE,
                                                   .lse_HT = lse_HT,
                                                   .sinks_H = sinks.tensor(),
                                                   .dsinks_H = c.params.grad(ids.sinks),
                                                   .mode = mode});
  }
  if (!whole)
    parallel::scatter_key_and_value_gradients(c.cp, c.backend(), c.stream, heads, sums, c.batch.samples,
                                              state.dqkv);
}

}  // namespace trainerd::core::model
