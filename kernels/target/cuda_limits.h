#pragma once

#include <cstdint>

namespace trainerd::kernels {

/// The largest head that RoPE, QK-norm and attention on a CUDA device take.
constexpr std::int64_t kLargestCudaHead = 256;
/// Target::alignment of CUDA devices: what cuBLASLt's heuristic looks at at most, and what cudaMalloc gives.
/// An algorithm that was timed for operands so aligned applies to every one.
constexpr std::int64_t kCudaAlignment = 256;
/// Target::vocab_multiple of CUDA devices: a GEMM's tile, and in every dtype whole 16-byte chunks, so that
/// each row of logits is aligned and the head's products run on the fast kernels.
constexpr std::int64_t kCudaVocabMultiple = 128;

}  // namespace trainerd::kernels
