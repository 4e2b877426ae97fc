#pragma once

// Layout of each GEMM operator's scratch. `scratch_bytes` returns its size, and the operator uses it to
// divide its one allocation. Depends only on shapes and dtypes.

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd/gemm_kernels.h"
#include "kernels/cpu/tiling/gemm.h"
#include "kernels/cpu/tiling/scratch_layout.h"

namespace trainerd::kernels {

/// out[T, n] = in[T, k] times a weight: the common form of fprop and dgrad.
struct LinearShape {
  DType in = DType::f32;
  std::int64_t tokens = 0, n = 0, k = 0;
  bool prepared = false;
};
inline LinearShape shape_of(const LinearFprop& a) {
  return {a.x_TC.dtype, a.x_TC.size(0), a.weight.plain_NC.size(0), a.weight.plain_NC.size(1),
          a.weight.prepared.defined()};
}
inline LinearShape shape_of(const LinearDgrad& a) {
  return {a.dy_TN.dtype, a.dy_TN.size(0), a.weight.plain_NC.size(1), a.weight.plain_NC.size(0),
          a.weight.prepared.defined()};
}
/// The GEMM of a fused operator, without the rest.
inline LinearFprop fprop_of(const LinearSwiglu& a) {
  LinearFprop f;
  f.x_TC = a.x_TC;
  f.weight = a.weight;
  f.y_TN = a.gate_up_T2F;
  return f;
}
inline LinearDgrad dgrad_of(const LinearDgradSwiglu& a, const Tensor& dact_TF) {
  LinearDgrad d;
  d.dy_TN = a.dy_TD;
  d.weight = a.weight;
  d.dx_TC = dact_TF;
  return d;
}

/// Plain: library workspace per thread. Widened: also the input in fp32, and per thread a block of the weight
/// and of the results in fp32.
struct LinearScratch {
  std::int64_t input = 0, library = 0, weight = 0, sums = 0;

  LinearScratch(const LinearShape& s, const Target& target) {
    library = layout_.take(target.threads * library_scratch(target));
    if (!widened(s.in, target)) return;
    features = even_blocks(s.n, kFeatureBlock, 16, sharing_threads(DType::f32, target));
    input = layout_.take(s.tokens * s.k * 4);
    weight_bytes = align_up(features.size * s.k * 4);
    sums_bytes = align_up(std::min(s.tokens, kTokenBlock) * features.size * 4);
    weight = layout_.take(target.threads * weight_bytes);
    sums = layout_.take(target.threads * sums_bytes);
  }
  std::int64_t total() const { return layout_.total(); }

  Blocks features;
  std::int64_t weight_bytes = 0, sums_bytes = 0;  ///< per thread

 private:
  ScratchLayout layout_;
};

/// dact before the row kernel processes it: a block of rows per thread, or the whole tensor if the GEMM is
/// widened.
struct DgradSwigluScratch {
  std::int64_t dact = 0, linear = 0;

  DgradSwigluScratch(const LinearDgradSwiglu& a, const Target& target) {
    const DType dtype = a.dy_TD.dtype;
    const std::int64_t T = a.dy_TD.size(0), F = a.weight.plain_NC.size(1);
    linear_bytes = LinearScratch(shape_of(dgrad_of(a, {})), target).total();
    linear = layout_.take(linear_bytes);
    blocks = fused_blocks(T, dtype, a.weight.prepared.defined(), target);
    dact_bytes = align_up(blocks.size * F * size_of(dtype));
    dact = layout_.take(widened(dtype, target) ? T * F * size_of(dtype) : target.threads * dact_bytes);
  }
  std::int64_t total() const { return layout_.total(); }

  Blocks blocks;
  std::int64_t linear_bytes = 0, dact_bytes = 0;

 private:
  ScratchLayout layout_;
};

/// Our own kernel: packed x (a chunk of its columns), and per thread packed dy and, if the gradient cannot be
/// summed in place, the sums. oneDNN: operands in fp32 if widened, and per thread library workspace and sums;
/// on AMX also transposed dy per thread.
struct WgradScratch {
  std::int64_t x = 0, dy = 0, library = 0, sums = 0, bias_sums = 0;

  WgradScratch(const LinearWgrad& a, const Target& target) {
    dtype = a.x_TC.dtype;
    tokens = a.x_TC.size(0);
    N = a.dweight_NC.size(0);
    C = a.dweight_NC.size(1);
    own = own_wgrad(dtype, target);
    // oneDNN's order of sums can depend on its block size, so only the shape determines it.
    rows = own ? even_blocks(N, kWgradRows, 6, target.threads)
               : even_blocks(N, by_amx(dtype, target) ? kAmxWgradRows : kWgradRows, 16, 1);
    columns = own ? std::min(C, kWgradColumns) : C;
    in_place = own && a.dweight_NC.dtype == DType::f32 && C % 16 == 0;
    sums_stride = own ? (columns + 15) / 16 * 16 : C;  // oneDNN's result is contiguous
    sums_bytes = in_place ? 0 : align_up(rows.size * sums_stride * 4);
    bias_bytes = align_up(rows.size * 4);
    if (own) {
      token_blocks = (tokens + wgrad_depth(dtype) - 1) / wgrad_depth(dtype);
      x_block_bytes = (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns * kWgradWords * 4;
      x = layout_.take(token_blocks * x_block_bytes);
      dy_bytes = (rows.size + kWgradGroup - 1) / kWgradGroup * kWgradGroup * kWgradWords * 4;
      dy = layout_.take(target.threads * dy_bytes);
    } else {
      library = layout_.take(target.threads * library_scratch(target));
      if (widened(dtype, target)) {
        x = layout_.take(tokens * C * 4);
        dy = layout_.take(tokens * N * 4);
      } else if (by_amx(dtype, target)) {
        token_blocks = (tokens + kAmxWgradTokens - 1) / kAmxWgradTokens;
        dy_stride = (std::min(tokens, kAmxWgradTokens) + 31) / 32 * 32;
        dy_bytes = align_up((rows.size + 15) / 16 * 16 * dy_stride * size_of(dtype));
        dy = layout_.take(target.threads * dy_bytes);
      }
    }
    sums = layout_.take(target.threads * sums_bytes);
    bias_sums = layout_.take(target.threads * bias_bytes);
  }
  std::int64_t total() const { return layout_.total(); }

  DType dtype = DType::f32;
  std::int64_t tokens = 0, N = 0, C = 0;
  bool own = false, in_place = false;
  Blocks rows;               ///< blocks of dw's rows
  std::int64_t columns = 0;  ///< columns of dw per chunk
  std::int64_t token_blocks = 0, x_block_bytes = 0;
  std::int64_t dy_bytes = 0, sums_bytes = 0, bias_bytes = 0, sums_stride = 0;  ///< per thread
  std::int64_t dy_stride = 0;  ///< elements between rows of transposed dy

 private:
  ScratchLayout layout_;
};

}  // namespace trainerd::kernels
