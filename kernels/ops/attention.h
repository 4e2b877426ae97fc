#pragma once

// Arguments of operators: attention. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Heads of a merged projection: a row of `qkv` is H query heads, then K key heads, then K value heads, E
/// each. H is a multiple of K; query head h uses key head h / (H / K).
struct HeadGeometry {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_size; }
};

/// Writes cos and sin of position * theta^(-2i/E) for i < E/2: table[s] = (cos_0 .. cos_{E/2-1}, sin_0 ..).
struct RopeTable {
  float theta = 10000.0f;
  Tensor table_SE;  ///< f32
};

/// Per head: RMS norm over E with a weight (optional), then rotation of the pairs (i, i + E/2) (Su et al.,
/// RoFormer, in the half-split order of Llama's published weights). Values pass through.
struct QkNormRopeForward {
  HeadGeometry heads;
  Tensor qkv_in;         ///< [T, columns]
  Tensor qkv_out;        ///< may be `qkv_in` when there are no norm weights
  Tensor positions_T;    ///< i32
  Tensor rope_table_SE;  ///< optional: no rotation without it
  Tensor q_weight_E;     ///< optional, with `k_weight_E`
  Tensor k_weight_E;
  float eps = 1e-6f;
};
struct QkNormRopeBackward {
  HeadGeometry heads;
  Tensor qkv_in;  ///< the forward's input; read only when there are norm weights
  Tensor dqkv;    ///< in: gradient of the output; out: gradient of the input
  Tensor positions_T;
  Tensor rope_table_SE;  ///< optional
  Tensor q_weight_E;     ///< optional
  Tensor k_weight_E;
  float eps = 1e-6f;
  Tensor dq_weight_E;  ///< with the weights
  Tensor dk_weight_E;
  WriteMode mode = WriteMode::accumulate;
};

enum class MaskKind : std::uint8_t { causal, none };

/// Whether sums may be added in an order that depends on timing, where that is faster.
enum class Determinism : std::uint8_t { deterministic, fast };

/// Sequences are rows [cu_seqlens[b], cu_seqlens[b + 1]) of the token dimension, each at most `max_seqlen`
/// long. out = softmax(scale q k^T + mask) v; lse is the natural log of the sum of exponentials of the scaled
/// scores.
struct AttentionForward {
  HeadGeometry heads;
  MaskKind mask = MaskKind::causal;
  float scale = 1.0f;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  Tensor cu_seqlens;  ///< i32 [sequences + 1]
  Tensor qkv;         ///< [T, columns]
  Tensor out_THE;     ///< [T, H * E]
  Tensor lse_HT;      ///< f32
};
/// (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 2.)
struct AttentionBackward {
  HeadGeometry heads;
  MaskKind mask = MaskKind::causal;
  float scale = 1.0f;
  Determinism determinism = Determinism::deterministic;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  Tensor cu_seqlens;
  Tensor qkv;
  Tensor out_THE;
  Tensor lse_HT;
  Tensor dout_THE;
  Tensor dqkv;  ///< [T, columns]
};

inline OpClass op_class(const QkNormRopeForward& a) { return memory_class(a.qkv_out); }
inline OpClass op_class(const QkNormRopeBackward& a) { return memory_class(a.dqkv); }
inline OpClass op_class(const AttentionForward& a) {
  return {.kind = OpClass::Kind::attention_forward,
          .dtype = a.qkv.dtype,
          .length = a.max_seqlen,
          .heads = a.heads.heads,
          .head_size = a.heads.head_size,
          .sequences = a.sequences};
}
inline OpClass op_class(const AttentionBackward& a) {
  return {.kind = OpClass::Kind::attention_backward,
          .dtype = a.qkv.dtype,
          .length = a.max_seqlen,
          .heads = a.heads.heads,
          .head_size = a.heads.head_size,
          .sequences = a.sequences};
}

}  // namespace trainerd::kernels
