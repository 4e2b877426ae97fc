#pragma once

// The GEMMs of the CUDA backend: the matrix product of each role, as cuBLASLt takes it, and its scratch.
// Depends only on shapes and the target; shared by the operators (gemm.cpp) and the planner
// (scratch_gemm.cpp).

#include <algorithm>
#include <cstdint>

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
  return a.x_TC.data.dtype == DType::f32 && a.dweight_NC.dtype == DType::bf16;
}

/// Scratch of linear_fprop: [workspace | bias in the dtype of y, if it has another one].
struct FpropScratch {
  std::int64_t bias, total;
  FpropScratch(const LinearFprop& a, const Target& target)
      : bias(gemm_scratch(target)), total(gemm_scratch(target)) {
    if (a.bias_N.defined() && a.bias_N.dtype != a.y_TN.dtype)
      total += align_up(a.bias_N.numel() * size_of(a.y_TN.dtype));
  }
};

/// Scratch of linear_wgrad: [workspace | weight gradient in fp32, if it goes through scratch]. The partial
/// sums of the bias gradient use the workspace before the GEMM does, and may need more than it.
struct WgradScratch {
  std::int64_t dweight, total = 0;
  WgradScratch(const LinearWgrad& a, const Target& target) : dweight(gemm_scratch(target)) {
    if (a.dbias_N.defined())
      dweight = std::max(
          dweight, align_up(partial_bytes(a.dy_TN.data.size(0), a.dbias_N.numel()), kGemmWorkspaceAlignment));
    total = dweight;
    if (wgrad_through_scratch(a)) total += align_up(a.dweight_NC.numel() * 4);
  }
};

/// Scratch of linear_dgrad_swiglu: [workspace | gradient of the activation].
struct DgradSwigluScratch {
  std::int64_t dact, total;
  DgradSwigluScratch(const LinearDgradSwiglu& a, const Target& target)
      : dact(gemm_scratch(target)), total(gemm_scratch(target)) {
    total += align_up(a.dy_TD.data.size(0) * a.weight.plain_NC.size(1) * size_of(a.dy_TD.data.dtype));
  }
};

}  // namespace trainerd::kernels::cuda
