#pragma once

// Arguments of operators: GEMM, by role. See ops.h.

#include <cstdint>

#include "kernels/ops/mlp.h"
#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Writes the prepared form of a weight to `out` (uint8, `Backend::prepared_bytes` long).
struct PrepareWeight {
  Tensor plain_NC;
  GemmRole role = GemmRole::fprop;
  std::int64_t tokens = 0;  ///< typical number of rows of the activation it is used with
  GemmFormat format = GemmFormat::plain;
  Tensor out;

  bool operator==(const PrepareWeight&) const = default;
};

/// y = x w^T (+ bias) (+ addend). `addend_TN` may be `y_TN`.
struct LinearFprop {
  Tensor x_TC;
  Weight weight;
  Tensor bias_N;     ///< optional
  Tensor addend_TN;  ///< optional
  Tensor y_TN;

  bool operator==(const LinearFprop&) const = default;
};

/// dx = dy w.
struct LinearDgrad {
  Tensor dy_TN;
  Weight weight;
  Tensor dx_TC;
  WriteMode mode = WriteMode::assign;

  bool operator==(const LinearDgrad&) const = default;
};

/// dw = dy^T x, dbias = column sums of dy.
struct LinearWgrad {
  Tensor dy_TN;
  Tensor x_TC;
  Tensor dweight_NC;
  Tensor dbias_N;  ///< optional; sums of dy as it is, in any format
  WriteMode mode = WriteMode::accumulate;
  GemmFormat format = GemmFormat::plain;

  bool operator==(const LinearWgrad&) const = default;
};

/// gate_up = x w^T, act = silu(gate) * up, or with GELU instead of silu. Rows [0, F) of the weight are the
/// gate, [F, 2F) the up projection. The layout of `gate_up_T2F` is up to the backend, and is the same in the
/// three operators that use it.
struct LinearSwiglu {
  Gate gate = Gate::silu;
  Tensor x_TC;
  Weight weight;  ///< [2F, C]
  Tensor gate_up_T2F;
  Tensor act_TF;

  bool operator==(const LinearSwiglu&) const = default;
};

/// dact = dy w; dgate_up = gradient through act. Recomputes `act_TF` if it is defined.
struct LinearDgradSwiglu {
  Gate gate = Gate::silu;
  Tensor dy_TD;
  Weight weight;  ///< [D, F], the down projection
  Tensor gate_up_T2F;
  Tensor dgate_up_T2F;  ///< may be `gate_up_T2F`
  Tensor act_TF;        ///< optional

  bool operator==(const LinearDgradSwiglu&) const = default;
};

inline OpClass op_class(const PrepareWeight& a) { return memory_class(a.plain_NC); }
inline OpClass op_class(const LinearFprop& a) {
  OpClass what = gemm_class(GemmRole::fprop, a.x_TC.dtype, a.y_TN.dtype, a.y_TN.size(0), a.y_TN.size(1),
                            a.x_TC.size(1), a.weight.format);
  what.adds = a.addend_TN.defined();
  what.bias = a.bias_N.defined();
  return what;
}
inline OpClass op_class(const LinearDgrad& a) {
  OpClass what = gemm_class(GemmRole::dgrad, a.dy_TN.dtype, a.dx_TC.dtype, a.dx_TC.size(0), a.dx_TC.size(1),
                            a.dy_TN.size(1), a.weight.format);
  what.adds = a.mode == WriteMode::accumulate;
  return what;
}
inline OpClass op_class(const LinearWgrad& a) {
  OpClass what = gemm_class(GemmRole::wgrad, a.x_TC.dtype, a.dweight_NC.dtype, a.dweight_NC.size(0),
                            a.dweight_NC.size(1), a.dy_TN.size(0), a.format);
  what.adds = a.mode == WriteMode::accumulate;
  return what;
}
inline OpClass op_class(const LinearSwiglu& a) {
  return gemm_class(GemmRole::fprop, a.x_TC.dtype, a.gate_up_T2F.dtype, a.gate_up_T2F.size(0),
                    a.gate_up_T2F.size(1), a.x_TC.size(1), a.weight.format);
}
inline OpClass op_class(const LinearDgradSwiglu& a) {
  return gemm_class(GemmRole::dgrad, a.dy_TD.dtype, a.dy_TD.dtype, a.dy_TD.size(0), a.weight.plain_NC.size(1),
                    a.dy_TD.size(1), a.weight.format);
}

}  // namespace trainerd::kernels
