#pragma once

// The GEMMs of the CUDA backend: the matrix product of each role, as cuBLASLt takes it, and its scratch.
// Depends only on shapes and the target; shared by the operators (gemm.cpp) and the planner
// (scratch_gemm.cpp).

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch/fp8_operand.h"
#include "kernels/cuda/launch/partials.h"
#include "kernels/memory/memory.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// A GEMM's workspace is rounded up, so that it can be aligned to 256 bytes.
constexpr std::int64_t kGemmWorkspaceAlignment = 256;
inline std::int64_t gemm_scratch(const Target& target) {
  return target.tuning.gemm_workspace_bytes + kGemmWorkspaceAlignment;
}

/// True if a weight gradient must go through fp32 scratch, because cuBLASLt does not round fp32 products to
/// bf16.
constexpr bool wgrad_through_scratch(const LinearWgrad& a) {
  return a.x_TC.dtype == DType::f32 && a.dweight_NC.dtype == DType::bf16;
}

/// Bytes of the operands of in[T, k] w or w^T in FP8, if they are in that format. A is the weight and B `in`.
inline std::int64_t fp8_bytes(const Tensor& in_TK, const Weight& weight) {
  if (weight.format == GemmFormat::plain) return 0;
  const std::int64_t T = in_TK.size(0), k = in_TK.size(1);
  return Fp8Scratch(weight.plain_NC.numel() / std::max<std::int64_t>(1, k), T, k, true).total;
}

/// Scratch of linear_fprop: [workspace | bias in the dtype of y, if it has another one | FP8 operands].
struct FpropScratch {
  std::int64_t bias, fp8, total;
  FpropScratch(const LinearFprop& a, const Target& target) : bias(gemm_scratch(target)), fp8(bias) {
    if (a.bias_N.defined() && a.bias_N.dtype != a.y_TN.dtype)
      fp8 += align_up(a.bias_N.numel() * size_of(a.y_TN.dtype), kGemmWorkspaceAlignment);
    total = fp8 + fp8_bytes(a.x_TC, a.weight);
  }
};

/// Scratch of linear_wgrad: [workspace | weight gradient in fp32, if it goes through scratch | FP8 operands].
/// The partial sums of the bias gradient use the workspace before the GEMM does, and may need more than it.
struct WgradScratch {
  std::int64_t dweight, fp8, total = 0;
  WgradScratch(const LinearWgrad& a, const Target& target) : dweight(gemm_scratch(target)) {
    if (a.dbias_N.defined())
      dweight = std::max(
          dweight, align_up(partial_bytes(a.dy_TN.size(0), a.dbias_N.numel()), kGemmWorkspaceAlignment));
    fp8 = dweight;
    if (wgrad_through_scratch(a)) fp8 += align_up(a.dweight_NC.numel() * 4, kGemmWorkspaceAlignment);
    total = fp8;
    if (a.format == GemmFormat::fp8)
      total += Fp8Scratch(a.dweight_NC.size(1), a.dweight_NC.size(0), a.x_TC.size(0), false).total;
  }
};

/// Scratch of linear_dgrad_swiglu: [workspace | gradient of the activation | FP8 operands].
struct DgradSwigluScratch {
  std::int64_t dact, fp8, total;
  DgradSwigluScratch(const LinearDgradSwiglu& a, const Target& target) : dact(gemm_scratch(target)) {
    fp8 = dact + align_up(a.dy_TD.size(0) * a.weight.plain_NC.size(1) * size_of(a.dy_TD.dtype),
                          kGemmWorkspaceAlignment);
    total = fp8 + fp8_bytes(a.dy_TD, a.weight);
  }
};

}  // namespace trainerd::kernels::cuda
