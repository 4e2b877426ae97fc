#pragma once

// Arguments of operators: normalisation. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

enum class NormKind : std::uint8_t { rms, layer };

/// sum = residual + delta; y = norm(sum) * (weight_offset + weight) (+ bias). The offset is 1 for models that
/// store the weight minus 1 (Gemma), else 0; the addition is in fp32. The norm reads the sum as stored, in
/// the activation dtype. So recomputing y and the statistics from the stored sum gives the same bits.
struct AddNormForward {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  Tensor residual_TD;
  Tensor delta_TD;  ///< optional
  Tensor weight_D;
  float weight_offset = 0.0f;
  Tensor bias_D;  ///< optional
  Tensor sum_TD;  ///< written if `delta_TD` is defined; may be `residual_TD`
  Tensor y_TD;
  Tensor mean_T;  ///< written only for `layer`
  Tensor rstd_T;

  bool operator==(const AddNormForward&) const = default;
};
/// dx = dsum + gradient through the norm; the parameters' gradients are written with `mode`.
struct AddNormBackward {
  NormKind kind = NormKind::rms;
  Tensor dy_TD;
  Tensor dsum_TD;  ///< optional: the gradient that reaches `sum` on other paths
  Tensor sum_TD;
  Tensor weight_D;
  float weight_offset = 0.0f;
  Tensor mean_T;
  Tensor rstd_T;
  Tensor dx_TD;  ///< may be `dsum_TD` or `dy_TD`
  Tensor dweight_D;
  Tensor dbias_D;  ///< optional
  WriteMode mode = WriteMode::accumulate;

  bool operator==(const AddNormBackward&) const = default;
};

inline OpClass op_class(const AddNormForward& a) { return memory_class(a.y_TD); }
inline OpClass op_class(const AddNormBackward& a) { return memory_class(a.dx_TD); }

}  // namespace trainerd::kernels
