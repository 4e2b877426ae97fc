#pragma once

#include <cstdint>

namespace trainerd::kernels {

/// Maximum head size of RoPE, QK-norm and attention on a CUDA device.
constexpr std::int64_t kLargestCudaHead = 256;
/// Target::alignment of CUDA devices: the largest alignment that cuBLASLt's heuristic considers, and that of
/// cudaMalloc. An algorithm timed for operands of this alignment works for every operand.
constexpr std::int64_t kCudaAlignment = 256;
/// Target::vocab_multiple of CUDA devices: the tile of a GEMM, and whole 16-byte chunks in every dtype. So
/// each row of logits is aligned, and the products of the head use the fast kernels.
constexpr std::int64_t kCudaVocabMultiple = 128;

}  // namespace trainerd::kernels
