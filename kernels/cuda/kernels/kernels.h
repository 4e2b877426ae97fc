#pragma once

// The launchers of our own kernels: one free function for each operator of ops.h that no library serves, in a
// .cu file by subject. Each checks what its kernel relies on, launches on the stream given and returns at
// once; an empty input launches nothing. Scratch is `scratch_bytes(args, target)` long (scratch.h), aligned
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

// A launcher for each operator that is ours alone or has a fallback of ours, in the source of its subject.
// Spans in the arguments are host memory: they may change when the launcher has returned. Attention where no
// library serves: fp32 or bf16, deterministic; on tensor cores (attention_mma.cu) where the heads are bf16,
// of a multiple of 8 and at most 128 elements; else by fp32 FMAs, slow.
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

/// out[n] (+)= sum over t of x[t, n], in fp32 and in an order that the shape alone fixes.
struct ColumnSums {
  Tensor x_TN;
  Tensor out_N;  ///< f32 or bf16
  WriteMode mode = WriteMode::assign;
};
// partials.cu
void column_sums(const Launch&, const ColumnSums&);

/// out (+)= x: what a GEMM could not write in the dtype of `out` itself.
struct Accumulate {
  Tensor x;    ///< f32
  Tensor out;  ///< bf16
  WriteMode mode = WriteMode::assign;
};
void accumulate(const Launch&, const Accumulate&);

}  // namespace trainerd::kernels::cuda
