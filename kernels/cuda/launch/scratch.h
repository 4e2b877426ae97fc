#pragma once

// Scratch of the CUDA world's operators, by the host alone: `scratch_bytes` of kernels/scratch/scratch.h asks
// here when the target is a CUDA device, and the backend takes its scratch by the same functions.

#include <cstdint>

#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

// scratch_gemm.cpp
std::int64_t gemm_scratch_bytes(const LinearFprop&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearDgrad&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearWgrad&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearSwiglu&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearDgradSwiglu&, const Target&);

// scratch_attention.cpp
std::int64_t attention_scratch_bytes(const AttentionForward&, const Target&);
std::int64_t attention_scratch_bytes(const AttentionBackward&, const Target&);

// scratch_kernels.cpp: our own kernels that need any. An operator to be added here gets an overload in
// kernels/scratch/scratch.h too.
std::int64_t kernel_scratch_bytes(const EmbeddingBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const AddNormBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const QkNormRopeBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const OrderedSum&, const Target&);
std::int64_t kernel_scratch_bytes(const TensorHash&, const Target&);

}  // namespace trainerd::kernels::cuda
