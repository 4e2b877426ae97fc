#pragma once

// The launchers of our own kernels: one free function per operator of ops.h that no library implements, in a
// .cu file by subject. Each checks what its kernel requires, launches it on the given stream and returns at
// once. An empty input launches nothing. Scratch is `scratch_bytes(args, target)` long (scratch.h), aligned
// to kAlignment, and not cleared.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/ops/ops.h"
#include "kernels/target/cuda_limits.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// Where a launcher runs: the stream, the device's properties (`sm_version`, `sm_count`), and the call's
/// scratch.
struct Launch {
  cudaStream_t stream = nullptr;
  const Target& target;
  std::byte* scratch = nullptr;
};

// One launcher per operator that uses our kernel always or as a fallback, in the source of its subject. Spans
// in the arguments are host memory and may change once the launcher has returned. Attention without a library
// supports fp32 and bf16 and is deterministic. It uses tensor cores (attention_mma.cu) if the heads are bf16
// and their size is a multiple of 8 up to 128; otherwise fp32 FMAs, which are slow.
#define TRAINERD_CUDA_library(name, Args)
#define TRAINERD_CUDA_either(name, Args) void name(const Launch&, const Args&);
#define TRAINERD_CUDA_own(name, Args) void name(const Launch&, const Args&);
#define TRAINERD_OPERATOR(name, Args, cuda) TRAINERD_CUDA_##cuda(name, Args)
#include "kernels/ops/operators.def"
#undef TRAINERD_CUDA_library
#undef TRAINERD_CUDA_either
#undef TRAINERD_CUDA_own

/// out[b, a, c] = x[a, b, c], fp32.
struct SwapLeading {
  Tensor x_ABC;
  Tensor out_BAC;
};
void swap_leading(const Launch&, const SwapLeading&);

/// out[n] (+)= sum over t of x[t, n], in fp32, in an order that only depends on the shape.
struct ColumnSums {
  Tensor x_TN;
  Tensor out_N;  ///< f32 or bf16
  WriteMode mode = WriteMode::assign;
};
// Defined in partials.cu:
void column_sums(const Launch&, const ColumnSums&);

/// out (+)= x, for GEMM results that the library cannot write in the dtype of `out`.
struct Accumulate {
  Tensor x;    ///< f32
  Tensor out;  ///< bf16
  WriteMode mode = WriteMode::assign;
};
void accumulate(const Launch&, const Accumulate&);

/// A bf16 operand rounded to FP8 (GemmFormat::fp8), in the form that cuBLASLt reads (launch/fp8_operand.h),
/// which also has the sizes of `scales`. Sizes are multiples of 16, but for the number of rows with
/// Blocks::rows.
struct RoundToFp8 {
  Tensor x_RC;
  std::uint8_t* out = nullptr;  ///< [R, C], or transposed [C, R]
  float* scales = nullptr;
  /// 1 x 128, 128 x 1 or 128 x 128
  enum class Blocks : std::uint8_t {
    rows,
    columns_transposed,
    squares,
    squares_transposed
  } blocks = Blocks::rows;
  Tensor used = {};  ///< i32 [1], optional, with Blocks::rows: how many rows are in use, and rounded
};
void round_to_fp8(const Launch&, const RoundToFp8&);

/// Rows of experts rounded for the weight gradient, transposed: ExpertWgradScratch (launch/fp8_operand.h).
/// Behind an expert's last row its last tile has zeros.
struct RoundExpertsToFp8 {
  Tensor x_RC;
  Tensor first_E;
  std::uint8_t* out = nullptr;
  float* scales = nullptr;
};
void round_experts_to_fp8(const Launch&, const RoundExpertsToFp8&);

}  // namespace trainerd::kernels::cuda
