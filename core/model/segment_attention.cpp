#include "core/model/segment_attention.h"

#include <cmath>

#include "core/model/segment_norms.h"

namespace trainerd::core::model {

using namespace kernels;

HeadGeometry heads_of(const WalkContext& c) {
  return {c.local.heads, c.local.kv_heads, c.model.head_dim, job::value_head_dim(c.model)};
}

namespace {

float attention_scale(const job::ModelOptions& m) {
  if (m.attention.scale > 0) return static_cast<float>(m.attention.scale);
  const double scalar = m.attention.query_pre_attn_scalar;
  return 1.0f / std::sqrt(scalar > 0 ? static_cast<float>(scalar) : static_cast<float>(m.head_dim));
}

/// Attention of whole sequences.
AttentionBlock whole_block(const WalkContext& c, const LayerParams& ids, const HeadGeometry& heads) {
  AttentionBlock block =
      whole_sequences(heads, attention_scale(c.model), c.batch.cu_seqlens, c.batch.max_seqlen);
  block.window = ids.options.window;
  block.softcap = static_cast<float>(c.model.attention.softcap);
  return block;
}

/// One call of attention with all its tensors. The backward's are undefined in the forward.
struct Call {
  AttentionBlock block;
  HeadView q, k, v, out;
  Tensor lse_HT;
  HeadView dout = {}, dq = {}, dk = {}, dv = {};
  WriteMode dkv_mode = WriteMode::assign;
  std::int64_t first_head = 0;  ///< of the layer's heads on this tensor-parallel rank; for sinks
};

void forward(const WalkContext& c, const LayerParams& ids, const Call& call) {
  c.backend().attention_forward(c.stream, {.block = call.block,
                                           .q_THE = call.q,
                                           .k_TKE = call.k,
                                           .v_TKE = call.v,
                                           .out_THE = call.out,
                                           .lse_HT = call.lse_HT});
  if (ids.sinks == kNoParam) return;
  const Lease sinks = c.params.use(ids.sinks, WeightForm::plain, c.stream);
  c.backend().attention_sink_forward(
      c.stream, {.out_THE = call.out,
                 .lse_HT = call.lse_HT,
                 .sinks_H = sinks.tensor().rows(call.first_head, call.block.heads.heads)});
}

bool sinks_train(const WalkContext& c, const LayerParams& ids) {
  return ids.sinks != kNoParam && trainable(c, ids.sinks);
}

void backward(const WalkContext& c, const LayerParams& ids, const Call& call, WriteMode dsinks_mode) {
  c.backend().attention_backward(c.stream, {.block = call.block,
                                            .determinism = c.attention,
                                            .q_THE = call.q,
                                            .k_TKE = call.k,
                                            .v_TKE = call.v,
                                            .out_THE = call.out,
                                            .lse_HT = call.lse_HT,
                                            .dout_THE = call.dout,
                                            .dq_THE = call.dq,
                                            .dk_TKE = call.dk,
                                            .dv_TKE = call.dv,
                                            .dkv_mode = call.dkv_mode});
  if (!sinks_train(c, ids)) return;
  const std::int64_t heads = call.block.heads.heads;
  const Lease sinks = c.params.use(ids.sinks, WeightForm::plain, c.stream);
  c.backend().attention_sink_backward(c.stream,
                                      {.out_THE = call.out,
                                       .dout_THE = call.dout,
                                       .lse_HT = call.lse_HT,
                                       .sinks_H = sinks.tensor().rows(call.first_head, heads),
                                       .dsinks_H = c.params.grad(ids.sinks).rows(call.first_head, heads),
                                       .mode = dsinks_mode});
}

WriteMode sinks_mode(const WalkContext& c, const LayerParams& ids) {
  return sinks_train(c, ids) ? c.params.grad_mode(ids.sinks) : WriteMode::assign;
}

// ---- One rank

Call whole_call(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  const HeadGeometry heads = heads_of(c);
  return {.block = whole_block(c, ids, heads),
          .q = heads.queries_of(state.qkv),
          .k = heads.keys_of(state.qkv),
          .v = heads.values_of(state.qkv),
          .out = heads.outputs_of(state.attended),
          .lse_HT = state.lse};
}

// ---- Ranks that exchange tokens for heads: `lse` is [H / cp, all tokens]

/// Attention's output as heads without keys.
HeadGeometry output_heads(const HeadGeometry& heads) { return {heads.heads, 0, heads.values_size()}; }

/// All tokens of this rank's heads, in scratch.
Tensor take_heads(const WalkContext& c, const HeadGeometry& heads) {
  return c.stream.scratch().take(
      c.dtype, {c.batch.tokens() * c.batch.share.ranks, heads_of_rank(c.cp, heads).columns()},
      MemoryTerm::activations);
}
Tensor spread(const WalkContext& c, const HeadGeometry& heads, const Tensor& x) {
  const Tensor to = take_heads(c, heads);
  parallel::tokens_to_heads(c.cp, c.backend(), c.stream, heads, x, c.batch.samples, to);
  return to;
}

Call heads_call(const WalkContext& c, const LayerParams& ids, const SegmentState& state, const Tensor& qkv,
                const Tensor& out) {
  const HeadGeometry part = heads_of_rank(c.cp, heads_of(c));
  return {.block = whole_block(c, ids, part),
          .q = part.queries_of(qkv),
          .k = part.keys_of(qkv),
          .v = part.values_of(qkv),
          .out = part.outputs_of(out),
          .lse_HT = state.lse,
          .first_head = c.cp.group->rank() * part.heads};
}

void attend_by_heads(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  const HeadGeometry heads = heads_of(c), outputs = output_heads(heads);
  const Tensor qkv = spread(c, heads, state.qkv), out = take_heads(c, outputs);
  forward(c, ids, heads_call(c, ids, state, qkv, out));
  parallel::heads_to_tokens(c.cp, c.backend(), c.stream, outputs, out, c.batch.samples, state.attended);
}

void attend_backward_by_heads(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                              const Tensor& dattended) {
  const HeadGeometry heads = heads_of(c), outputs = output_heads(heads), part = heads_of_rank(c.cp, heads);
  const Tensor qkv = spread(c, heads, state.qkv), out = spread(c, outputs, state.attended),
               dout = spread(c, outputs, dattended), dqkv = take_heads(c, heads);
  Call call = heads_call(c, ids, state, qkv, out);
  call.dout = part.outputs_of(dout);
  call.dq = part.queries_of(dqkv), call.dk = part.keys_of(dqkv), call.dv = part.values_of(dqkv);
  WriteMode mode = sinks_mode(c, ids);
  // The sum over ranks completes the gradient, so that of other ranks' heads is 0 here.
  if (sinks_train(c, ids) && mode == WriteMode::assign) {
    c.backend().fill_zero(c.stream, c.params.grad(ids.sinks));
    mode = WriteMode::accumulate;
  }
  backward(c, ids, call, mode);
  parallel::heads_to_tokens(c.cp, c.backend(), c.stream, heads, dqkv, c.batch.samples, state.dqkv);
}

// ---- Ranks that gather keys and values: `lse` is [2 H, T / 2], one piece of the rank's share after the
// other

parallel::KeysAndValues gathered(const WalkContext& c, const Tensor& qkv) {
  const HeadGeometry heads = heads_of(c);
  const parallel::KeysAndValues all = parallel::take_keys_and_values(c.cp, c.stream, heads, qkv, c.dtype);
  parallel::gather_keys_and_values(c.cp, c.backend(), c.stream, heads, qkv, c.batch.samples, all);
  return all;
}

Tensor piece_of(const WalkContext& c, const Tensor& x, int piece) {
  const std::int64_t rows = c.batch.tokens() / c.batch.share.pieces();
  return x.rows(piece * rows, rows);
}

Call piece_call(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                const parallel::KeysAndValues& keys, int piece) {
  const Batch& batch = c.batch;
  const HeadGeometry heads = heads_of(c);
  const auto at = static_cast<std::size_t>(piece);
  Call call{.block = whole_block(c, ids, heads),
            .q = heads.queries_of(piece_of(c, state.qkv, piece)),
            .k = keys.keys(),
            .v = keys.values(),
            .out = heads.outputs_of(piece_of(c, state.attended, piece)),
            .lse_HT = state.lse.rows(piece * heads.heads, heads.heads)};
  call.block.queries = {.cu_seqlens = batch.piece_seqlens[at],
                        .max_seqlen = batch.share.piece_rows(),
                        .first = batch.share.first(piece),
                        .first_B = batch.piece_first[at],
                        .first_bounds = batch.piece_first[at].defined()};
  return call;
}

void attend_to_gathered(const WalkContext& c, const LayerParams& ids, const SegmentState& state) {
  const parallel::KeysAndValues keys = gathered(c, state.qkv);
  for (int piece = 0; piece < c.batch.share.pieces(); ++piece)
    forward(c, ids, piece_call(c, ids, state, keys, piece));
}

void attend_backward_to_gathered(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                                 const Tensor& dattended) {
  const HeadGeometry heads = heads_of(c);
  const parallel::KeysAndValues keys = gathered(c, state.qkv);
  // Two pieces of queries and all ranks add to the gradients of a key, so these are fp32.
  const parallel::KeysAndValues sums =
      parallel::take_keys_and_values(c.cp, c.stream, heads, state.qkv, DType::f32);
  WriteMode mode = sinks_mode(c, ids);
  for (int piece = 0; piece < c.batch.share.pieces(); ++piece) {
    Call call = piece_call(c, ids, state, keys, piece);
    call.dout = heads.outputs_of(piece_of(c, dattended, piece));
    call.dq = heads.queries_of(piece_of(c, state.dqkv, piece));
    call.dk = sums.keys(), call.dv = sums.values();
    call.dkv_mode = piece == 0 ? WriteMode::assign : WriteMode::accumulate;
    backward(c, ids, call, mode);
    mode = WriteMode::accumulate;
  }
  parallel::scatter_key_and_value_gradients(c.cp, c.backend(), c.stream, heads, sums, c.batch.samples,
                                            state.dqkv);
}

/// As many numbers as heads x tokens of this rank, in the form that the calls write.
Shape lse_shape(const WalkContext& c) {
  const std::int64_t heads = c.local.heads, tokens = c.batch.tokens();
  if (c.batch.share.whole()) return {heads, tokens};
  if (c.cp.by_heads) return {heads / c.batch.share.ranks, tokens * c.batch.share.ranks};
  return {heads * c.batch.share.pieces(), tokens / c.batch.share.pieces()};
}

}  // namespace

void attend(const WalkContext& c, const LayerParams& ids, const ActivationArenas& arenas,
            SegmentState& state) {
  const HeadGeometry heads = heads_of(c);
  state.attended = arenas.cheap_to_weight.take(c.dtype, {c.batch.tokens(), heads.output_columns()},
                                               MemoryTerm::activations);
  state.lse = arenas.cheap_to_backward.take(DType::f32, lse_shape(c), MemoryTerm::activations);
  const ArenaScope scope(c.stream.scratch());
  if (c.batch.share.whole()) forward(c, ids, whole_call(c, ids, state));
  else if (c.cp.by_heads) attend_by_heads(c, ids, state);
  else attend_to_gathered(c, ids, state);
}

void attend_backward(const WalkContext& c, const LayerParams& ids, const SegmentState& state,
                     const Tensor& dattended) {
  const ArenaScope scope(c.stream.scratch());
  if (!c.batch.share.whole()) {
    if (c.cp.by_heads) attend_backward_by_heads(c, ids, state, dattended);
    else attend_backward_to_gathered(c, ids, state, dattended);
    return;
  }
  const HeadGeometry heads = heads_of(c);
  Call call = whole_call(c, ids, state);
  call.dout = heads.outputs_of(dattended);
  call.dq = heads.queries_of(state.dqkv);
  call.dk = heads.keys_of(state.dqkv), call.dv = heads.values_of(state.dqkv);
  backward(c, ids, call, sinks_mode(c, ids));
}

}  // namespace trainerd::core::model
