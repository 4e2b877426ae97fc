#pragma once

// Arguments of operators: attention. See ops.h.

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/ops/head_view.h"
#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Writes `factor` times cos and sin of position * frequency_i for i < R/2: table[s] = (cos_0 .. cos_{R/2-1},
/// sin_0 ..). R is the number of elements of a head that are rotated, its first ones; usually all E.
struct RopeTable {
  std::span<const double> frequencies;  ///< R/2 values, radians per position
  double factor = 1.0;                  ///< scales cos and sin: YaRN's attention factor
  Tensor table_SR;                      ///< f32
};

/// What an RMS norm of queries and keys spans: each head separately, or all query heads together and all key
/// heads together (OLMo 2).
enum class QkNormSpan : std::uint8_t { head, all };

/// RMS norm of queries and keys with weights (optional), then rotation of the pairs (i, i + R/2) of each
/// head's first R elements, where R is the table's width (Su et al., RoFormer, in the half-split order of
/// Llama's published weights). Values and unrotated elements pass through. A norm over the heads of several
/// ranks takes its sums from QkNormSums.
struct QkNormRopeForward {
  HeadGeometry heads;
  Tensor qkv_in;         ///< [T, columns]
  Tensor qkv_out;        ///< may be `qkv_in` if there are no norm weights
  Tensor positions_T;    ///< i32
  Tensor rope_table_SR;  ///< optional: without it no rotation
  QkNormSpan span = QkNormSpan::head;
  Tensor q_weight_E;  ///< optional, with `k_weight_E`; [H E] with span `all`, and [K E] for keys
  Tensor k_weight_E;
  float weight_offset = 0.0f;  ///< for both weights, as in AddNormForward
  float eps = 1e-6f;
  Tensor squares_T2 = {};  ///< optional, with span `all`: sums of squares over all `ranks`
  std::int64_t ranks = 1;  ///< ranks with the same number of heads each

  bool operator==(const QkNormRopeForward&) const = default;
};
struct QkNormRopeBackward {
  HeadGeometry heads;
  Tensor qkv_in;  ///< the forward's input; only read if there are norm weights
  Tensor dqkv;    ///< in: gradient of the output; out: gradient of the input
  Tensor positions_T;
  Tensor rope_table_SR;  ///< optional
  QkNormSpan span = QkNormSpan::head;
  Tensor q_weight_E;  ///< optional
  Tensor k_weight_E;
  float weight_offset = 0.0f;
  float eps = 1e-6f;
  Tensor dq_weight_E;  ///< with the weights
  Tensor dk_weight_E;
  WriteMode mode = WriteMode::accumulate;
  Tensor squares_T2 = {};   ///< as in the forward
  Tensor products_T2 = {};  ///< with `squares_T2`: sums of products over all `ranks`
  std::int64_t ranks = 1;

  bool operator==(const QkNormRopeBackward&) const = default;
};
/// Per token, one sum over its query heads and one over its key heads: of x^2, or with `dqkv` of g w x, where
/// g is the gradient of the norm's output (`dqkv` rotated back) and w the weight plus its offset.
struct QkNormSums {
  HeadGeometry heads;
  Tensor qkv_in;         ///< [T, columns]
  Tensor dqkv = {};      ///< optional: the gradient of QkNormRopeForward's output
  Tensor positions_T;    ///< i32; like the following, only read with `dqkv`
  Tensor rope_table_SR;  ///< optional
  Tensor q_weight_E;     ///< [H E], and [K E] for keys
  Tensor k_weight_E;
  float weight_offset = 0.0f;
  Tensor sums_T2;  ///< f32, assigned: queries, then keys

  bool operator==(const QkNormSums&) const = default;
};

/// Elements of a head that an operator with this table rotates; 0 without a table. Throws std::logic_error if
/// the table does not fit.
std::int64_t rotated_elements(const Tensor& rope_table_SR, const HeadGeometry& heads);

/// Throws std::logic_error unless the sums over ranks have the form that a norm over all heads reads.
inline void check_rank_sums(QkNormSpan span, const Tensor& sums_T2, std::int64_t tokens, std::int64_t ranks) {
  base::check(sums_T2.defined() ? span == QkNormSpan::all && sums_T2.dtype == DType::f32 &&
                                      sums_T2.numel() == 2 * tokens && ranks > 1
                                : ranks == 1,
              "qk norm: sums of several ranks are fp32, two per token, and of norms over all heads");
}

/// Number of weights of the norm of queries, or of keys.
inline std::int64_t norm_elements(QkNormSpan span, std::int64_t heads, std::int64_t head_size) {
  return span == QkNormSpan::head ? head_size : heads * head_size;
}

enum class MaskKind : std::uint8_t { causal, none };

/// Whether sums may be added in an order that depends on timing, if that is faster.
enum class Determinism : std::uint8_t { deterministic, fast };

/// The queries or the keys of a call. Row i of sequence b is at position first + first_B[b] + i of its
/// document; an undefined `first_B` means zeros. Values of `cu_seqlens` and `first_B` may differ from call to
/// call: they are read when the operator runs, never when it is planned.
struct AttentionRows {
  Tensor cu_seqlens;  ///< i32 [sequences + 1]: sequence b is rows [cu[b], cu[b + 1]); from 0 to all rows
  std::int64_t max_seqlen = 0;  ///< upper bound of the lengths of sequences
  std::int64_t first = 0;
  Tensor first_B = {};  ///< optional, i32 [sequences]
  /// No value of `first_B` is above 0. A cost then counts with `first` alone, and else with the upper bound.
  bool first_bounds = false;

  bool operator==(const AttentionRows&) const = default;
};

/// Attention of queries to keys of the same sequences: whole sequences, or blocks of longer ones. A sequence
/// may have no queries or no keys. A query at position p sees keys at positions j <= p with a causal mask,
/// and of these only j > p - window if `window` is not 0. Without a mask it sees all keys of its sequence.
struct AttentionBlock {
  HeadGeometry heads;
  MaskKind mask = MaskKind::causal;
  /// causal only: number of keys that a query sees, including its own position; 0: all
  std::int64_t window = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  ///< scaled scores s become softcap tanh(s / softcap) (Gemma 2); 0: unchanged
  std::int64_t sequences = 0;
  AttentionRows queries;
  AttentionRows keys;

  bool operator==(const AttentionBlock&) const = default;
};

/// out = softmax(cap(scale q k^T) + mask) v; lse is the natural log of the sum of exponentials of the scaled
/// and capped scores. A query that sees no key has out 0 and lse -infinity. With `accumulate`, `out` and
/// `lse` hold the results of the same queries over other keys, and become those over all keys. A query that
/// sees no key in this call keeps both bit for bit. One that saw none before gets what `assign` would write.
/// So any split into blocks, in any order, gives the result over all keys up to rounding. Outputs have the
/// activations' dtype or f32: blocks of bf16 merge in f32, to be rounded once.
struct AttentionForward {
  AttentionBlock block;
  HeadView q_THE;
  HeadView k_TKE;  ///< T of the keys
  HeadView v_TKE;
  HeadView out_THE;
  Tensor lse_HT;  ///< f32, T of the queries
  WriteMode mode = WriteMode::assign;

  bool operator==(const AttentionForward&) const = default;
};

/// `out` and `lse` are those over all keys of the queries, even if this block has only some of the keys. dq
/// sums over blocks of keys, dk and dv over blocks of queries; each is assigned or added to. Gradients have
/// the activations' dtype or f32. (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 2.)
struct AttentionBackward {
  AttentionBlock block;
  Determinism determinism = Determinism::deterministic;
  HeadView q_THE;
  HeadView k_TKE;
  HeadView v_TKE;
  HeadView out_THE;
  Tensor lse_HT;
  HeadView dout_THE;
  HeadView dq_THE;
  HeadView dk_TKE;
  HeadView dv_TKE;
  WriteMode dq_mode = WriteMode::assign;
  WriteMode dkv_mode = WriteMode::assign;

  bool operator==(const AttentionBackward&) const = default;
};

/// One logit per head that joins the softmax of its rows and has no value. `out` and `lse` over all keys
/// become those over keys and sink, in place: out' = out e^(lse - lse') with lse' = log(e^lse + e^sink). The
/// backward of attention then only needs these two. (Xiao et al., arXiv 2309.17453; learned, as in gpt-oss.)
struct AttentionSinkForward {
  HeadView out_THE;
  Tensor lse_HT;  ///< f32
  Tensor sinks_H;

  bool operator==(const AttentionSinkForward&) const = default;
};
/// dsinks_h (+)= - sum over t of e^(sink_h - lse_ht) (out_th . dout_th), with the `out` and `lse` that
/// include the sink.
struct AttentionSinkBackward {
  HeadView out_THE;
  HeadView dout_THE;
  Tensor lse_HT;
  Tensor sinks_H;
  Tensor dsinks_H;  ///< f32 or bf16
  WriteMode mode = WriteMode::accumulate;

  bool operator==(const AttentionSinkBackward&) const = default;
};

/// Whole causal sequences of at most `max_seqlen` rows, each attending to itself.
inline AttentionBlock whole_sequences(const HeadGeometry& heads, float scale, const Tensor& cu_seqlens,
                                      std::int64_t max_seqlen) {
  const AttentionRows rows{.cu_seqlens = cu_seqlens, .max_seqlen = max_seqlen};
  return {.heads = heads, .scale = scale, .sequences = cu_seqlens.numel() - 1, .queries = rows, .keys = rows};
}

// These throw std::logic_error if shapes, dtypes or strides do not match. Defined in attention.cpp.
enum class DTypes : std::uint8_t { its_own, its_own_or_f32 };
void check_block(const AttentionBlock& b, const HeadView& q, const HeadView& k, const HeadView& v);
void check_like(const HeadView& x, const HeadView& like, DTypes dtypes);
/// Like check_like, with another head size.
void check_output(const HeadView& x, const HeadView& like, std::int64_t head_size, DTypes dtypes);
void check_sums(const Tensor& lse_HT, const HeadView& q);
void check_sinks(const Tensor& sinks_H, const HeadView& out);

/// Every backend calls it, including the meta backend.
inline void check_args(const AttentionForward& a) {
  check_block(a.block, a.q_THE, a.k_TKE, a.v_TKE);
  check_output(a.out_THE, a.q_THE, a.block.heads.values_size(), DTypes::its_own_or_f32);
  check_sums(a.lse_HT, a.q_THE);
}
inline void check_args(const AttentionBackward& a) {
  check_block(a.block, a.q_THE, a.k_TKE, a.v_TKE);
  check_output(a.out_THE, a.q_THE, a.block.heads.values_size(), DTypes::its_own_or_f32);
  check_output(a.dout_THE, a.q_THE, a.block.heads.values_size(), DTypes::its_own);
  check_like(a.dq_THE, a.q_THE, DTypes::its_own_or_f32);
  check_like(a.dk_TKE, a.k_TKE, DTypes::its_own_or_f32);
  check_like(a.dv_TKE, a.v_TKE, DTypes::its_own_or_f32);
  check_sums(a.lse_HT, a.q_THE);
}

inline void check_args(const AttentionSinkForward& a) {
  check_sums(a.lse_HT, a.out_THE);
  check_sinks(a.sinks_H, a.out_THE);
}
inline void check_args(const AttentionSinkBackward& a) {
  check_sums(a.lse_HT, a.out_THE);
  check_sinks(a.sinks_H, a.out_THE);
  check_like(a.dout_THE, a.out_THE, DTypes::its_own);
  check_sinks(a.dsinks_H, a.out_THE);
}

inline OpClass op_class(const QkNormRopeForward& a) { return memory_class(a.qkv_out); }
inline OpClass op_class(const QkNormRopeBackward& a) { return memory_class(a.dqkv); }
inline OpClass op_class(const QkNormSums& a) { return memory_class(a.qkv_in); }

inline OpClass op_class(const AttentionSinkForward& a) { return {.dtype = a.out_THE.dtype}; }
inline OpClass op_class(const AttentionSinkBackward& a) { return {.dtype = a.out_THE.dtype}; }

/// All sequences count as if they had the length of the longest one.
inline OpClass attention_class(OpClass::Kind kind, const AttentionBlock& b, const HeadView& q_THE) {
  const std::int64_t longest = b.queries.max_seqlen, keys = b.keys.max_seqlen;
  return {.kind = kind,
          .dtype = q_THE.dtype,
          .length = longest,
          .key_length = b.window > 0 ? std::min(keys, b.window) : keys,
          .heads = b.heads.heads,
          .head_size = b.heads.head_size,
          .value_size = b.heads.values_size(),
          .sequences = longest > 0 ? (q_THE.rows + longest - 1) / longest : 0};
}
inline OpClass op_class(const AttentionForward& a) {
  return attention_class(OpClass::Kind::attention_forward, a.block, a.q_THE);
}
inline OpClass op_class(const AttentionBackward& a) {
  return attention_class(OpClass::Kind::attention_backward, a.block, a.q_THE);
}

}  // namespace trainerd::kernels
