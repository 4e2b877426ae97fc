#pragma once

// What an operator call is to a cost model: a matrix product of some size, attention over some length, or bytes to move.

#include <array>
#include <cstdint>

#include "kernels/ops/ops.h"

namespace trainerd::kernels {

/// Of the operators as observers hear them; "other" stands for any without a shape.
inline constexpr std::array kOperatorNames = {
    "prepare_weight", "linear_fprop", "linear_dgrad", "linear_wgrad", "linear_swiglu", "linear_dgrad_swiglu", "glu_forward", "glu_backward",
    "gelu_forward", "gelu_backward", "embedding_forward", "embedding_backward", "add_norm_forward", "add_norm_backward", "rope_table",
    "qk_norm_rope_forward", "qk_norm_rope_backward", "attention_forward", "attention_backward", "ce_stats", "ce_rescale", "ce_finish", "add",
    "scale", "cast", "block_square_sums", "total_square_sum", "ordered_sum", "tensor_hash", "step_control", "adamw_update", "init_normal",
    "copy", "fill_zero", "other"};

/// What the time of a product or of attention is a sum over: see core/plan/cost/measured_cost.h.
constexpr std::size_t kShapeTerms = 6;

struct OpClass {
  enum class Kind : std::uint8_t { memory, gemm, attention_forward, attention_backward } kind = Kind::memory;
  DType dtype = DType::f32;  ///< of its operands, where those are activations, weights or parameters
  std::int64_t m = 0, n = 0, k = 0;  ///< of a GEMM: output rows, output columns, summands
  GemmRole role = GemmRole::fprop;
  DType out = DType::f32;           ///< of a GEMM's output
  bool adds = false, bias = false;  ///< a GEMM adds to its output or adds another tensor; a bias
  std::int64_t length = 0;           ///< of attention: the longest sequence
  std::int64_t heads = 0, head_size = 0, sequences = 0;

  auto operator<=>(const OpClass&) const = default;
};

inline OpClass gemm_class(GemmRole role, DType dtype, DType out, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.kind = OpClass::Kind::gemm, .dtype = dtype, .m = m, .n = n, .k = k, .role = role, .out = out};
}

template <class Args>
OpClass op_class(const Args&) {
  return {};
}
inline OpClass memory_class(const Tensor& x) { return {.dtype = x.dtype}; }
inline OpClass op_class(const PrepareWeight& a) { return memory_class(a.plain_NC); }
inline OpClass op_class(const GluForward& a) { return memory_class(a.act_TF); }
inline OpClass op_class(const GluBackward& a) { return memory_class(a.dact_TF); }
inline OpClass op_class(const GeluForward& a) { return memory_class(a.act_TF); }
inline OpClass op_class(const GeluBackward& a) { return memory_class(a.dx_TF); }
inline OpClass op_class(const EmbeddingForward& a) { return memory_class(a.out_TD); }
inline OpClass op_class(const EmbeddingBackward& a) { return memory_class(a.dout_TD); }
inline OpClass op_class(const AddNormForward& a) { return memory_class(a.y_TD); }
inline OpClass op_class(const AddNormBackward& a) { return memory_class(a.dx_TD); }
inline OpClass op_class(const QkNormRopeForward& a) { return memory_class(a.qkv_out); }
inline OpClass op_class(const QkNormRopeBackward& a) { return memory_class(a.dqkv); }
inline OpClass op_class(const CeStats& a) { return memory_class(a.logits_TV); }
inline OpClass op_class(const CeFinish& a) { return memory_class(a.logits_TV); }
inline OpClass op_class(const Add& a) { return memory_class(a.out); }
inline OpClass op_class(const Scale& a) { return memory_class(a.x); }
inline OpClass op_class(const Cast& a) { return memory_class(a.out); }
inline OpClass op_class(const BlockSquareSums& a) { return memory_class(a.x); }
inline OpClass op_class(const AdamwUpdate& a) { return memory_class(a.params); }
inline OpClass op_class(const LinearFprop& a) {
  OpClass what = gemm_class(GemmRole::fprop, a.x_TC.data.dtype, a.y_TN.dtype, a.y_TN.size(0), a.y_TN.size(1), a.x_TC.data.size(1));
  what.adds = a.addend_TN.defined();
  what.bias = a.bias_N.defined();
  return what;
}
inline OpClass op_class(const LinearDgrad& a) {
  OpClass what = gemm_class(GemmRole::dgrad, a.dy_TN.data.dtype, a.dx_TC.dtype, a.dx_TC.size(0), a.dx_TC.size(1), a.dy_TN.data.size(1));
  what.adds = a.mode == WriteMode::accumulate;
  return what;
}
inline OpClass op_class(const LinearWgrad& a) {
  OpClass what =
      gemm_class(GemmRole::wgrad, a.x_TC.data.dtype, a.dweight_NC.dtype, a.dweight_NC.size(0), a.dweight_NC.size(1), a.dy_TN.data.size(0));
  what.adds = a.mode == WriteMode::accumulate;
  return what;
}
inline OpClass op_class(const LinearSwiglu& a) {
  return gemm_class(GemmRole::fprop, a.x_TC.data.dtype, a.gate_up_T2F.dtype, a.gate_up_T2F.size(0), a.gate_up_T2F.size(1),
                    a.x_TC.data.size(1));
}
inline OpClass op_class(const LinearDgradSwiglu& a) {
  return gemm_class(GemmRole::dgrad, a.dy_TD.data.dtype, a.dy_TD.data.dtype, a.dy_TD.data.size(0), a.weight.plain_NC.size(1),
                    a.dy_TD.data.size(1));
}
inline OpClass op_class(const AttentionForward& a) {
  return {.kind = OpClass::Kind::attention_forward, .dtype = a.qkv.dtype, .length = a.max_seqlen, .heads = a.heads.heads,
          .head_size = a.heads.head_size, .sequences = a.sequences};
}
inline OpClass op_class(const AttentionBackward& a) {
  return {.kind = OpClass::Kind::attention_backward, .dtype = a.qkv.dtype, .length = a.max_seqlen, .heads = a.heads.heads,
          .head_size = a.heads.head_size, .sequences = a.sequences};
}

}  // namespace trainerd::kernels
