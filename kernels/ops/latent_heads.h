#pragma once

// Arguments of operators: heads of multi-head latent attention. See ops.h.

#include "kernels/ops/attention.h"

namespace trainerd::kernels {

/// Builds the heads of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1.3). There is a
/// key head for each query head. The last R elements of a query head are rotated. A key head has E - R
/// elements of its own, then R rotated elements that all heads share. Elements 2 i and 2 i + 1 are rotated as
/// a pair, as in DeepSeek's published weights.
struct LatentHeadsForward {
  HeadGeometry heads;
  Tensor q_TC;           ///< [T, H E]
  Tensor kv_TC;          ///< [T, H (E - R + Ev)]: per head the key's own elements, then the value
  Tensor k_rope_TR;      ///< the keys' shared elements
  Tensor positions_T;    ///< i32
  Tensor rope_table_SR;  ///< f32, see RopeTable
  Tensor qkv;            ///< [T, columns], assigned: as attention reads it

  bool operator==(const LatentHeadsForward&) const = default;
};
/// The gradient of a shared element is the sum over the heads, in fp32 and in their order.
struct LatentHeadsBackward {
  HeadGeometry heads;
  Tensor dqkv;
  Tensor positions_T;
  Tensor rope_table_SR;
  Tensor dq_TC;  ///< assigned, as are the following
  Tensor dkv_TC;
  Tensor dk_rope_TR;

  bool operator==(const LatentHeadsBackward&) const = default;
};

/// Throws std::logic_error if shapes or dtypes do not match.
void check_latent_heads(const HeadGeometry& heads, const Tensor& q_TC, const Tensor& kv_TC,
                        const Tensor& k_rope_TR, const Tensor& positions_T, const Tensor& rope_table_SR,
                        const Tensor& qkv);
inline void check_args(const LatentHeadsForward& a) {
  check_latent_heads(a.heads, a.q_TC, a.kv_TC, a.k_rope_TR, a.positions_T, a.rope_table_SR, a.qkv);
}
inline void check_args(const LatentHeadsBackward& a) {
  check_latent_heads(a.heads, a.dq_TC, a.dkv_TC, a.dk_rope_TR, a.positions_T, a.rope_table_SR, a.dqkv);
}

inline OpClass op_class(const LatentHeadsForward& a) { return memory_class(a.qkv); }
inline OpClass op_class(const LatentHeadsBackward& a) { return memory_class(a.dqkv); }

}  // namespace trainerd::kernels
