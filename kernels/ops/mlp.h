#pragma once

// Arguments of operators: elementwise parts of the MLP. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Activation of the gate: SwiGLU's silu(x) = x sigmoid(x), GeGLU's GELU, as below, or gpt-oss's clamped
/// SwiGLU, g sigmoid(1.702 g) (u + 1) with g = min(gate, 7) and u = the up projection within -7 and 7; where
/// one is beyond these its gradient is 0.
enum class Gate : std::uint8_t { silu, gelu, clamped };
constexpr float kGateSlope = 1.702f, kGateLimit = 7.0f;

struct GluForward {
  Gate gate = Gate::silu;
  Tensor gate_up_T2F;
  Tensor act_TF;
  Tensor used_rows = {};        ///< i32 [1], optional: how many rows are in use; the others are left alone
  std::int64_t usual_rows = 0;  ///< with `used_rows`: how many are on average, for costs

  bool operator==(const GluForward&) const = default;
};
struct GluBackward {
  Gate gate = Gate::silu;
  Tensor dact_TF;
  Tensor gate_up_T2F;
  Tensor dgate_up_T2F;    ///< may be `gate_up_T2F`
  Tensor act_TF;          ///< optional: recomputed
  Tensor used_rows = {};  ///< as in GluForward
  std::int64_t usual_rows = 0;

  bool operator==(const GluBackward&) const = default;
};
/// GELU with the tanh approximation (GPT-2's): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluForward {
  Tensor x_TF;
  Tensor act_TF;

  bool operator==(const GeluForward&) const = default;
};
struct GeluBackward {
  Tensor dact_TF;
  Tensor x_TF;
  Tensor dx_TF;  ///< may be `dact_TF`

  bool operator==(const GeluBackward&) const = default;
};

inline OpClass op_class(const GluForward& a) { return memory_class(a.act_TF); }
inline OpClass op_class(const GluBackward& a) { return memory_class(a.dact_TF); }
inline OpClass op_class(const GeluForward& a) { return memory_class(a.act_TF); }
inline OpClass op_class(const GeluBackward& a) { return memory_class(a.dx_TF); }

}  // namespace trainerd::kernels
