#pragma once

// Scratch of the CUDA backend's operators, computed on the host. `scratch_bytes` of kernels/scratch/scratch.h
// calls these for CUDA targets, and the backend takes its scratch with the same functions.

#include <cstdint>

#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

// Defined in scratch_gemm.cpp:
std::int64_t gemm_scratch_bytes(const LinearFprop&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearDgrad&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearWgrad&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearSwiglu&, const Target&);
std::int64_t gemm_scratch_bytes(const LinearDgradSwiglu&, const Target&);

// Defined in scratch_attention.cpp:
std::int64_t attention_scratch_bytes(const AttentionForward&, const Target&);
std::int64_t attention_scratch_bytes(const AttentionBackward&, const Target&);

// Defined in scratch_kernels.cpp, for our own kernels that need scratch. A new operator here also needs an
// overload in kernels/scratch/scratch.h.
std::int64_t kernel_scratch_bytes(const EmbeddingBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const AddNormBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const QkNormRopeBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const OrderedSum&, const Target&);
std::int64_t kernel_scratch_bytes(const SortExperts&, const Target&);
std::int64_t kernel_scratch_bytes(const ExpertBiasBackward&, const Target&);
std::int64_t kernel_scratch_bytes(const ExpertFprop&, const Target&);
std::int64_t kernel_scratch_bytes(const ExpertDgrad&, const Target&);
std::int64_t kernel_scratch_bytes(const ExpertWgrad&, const Target&);
std::int64_t kernel_scratch_bytes(const TensorHash&, const Target&);

}  // namespace trainerd::kernels::cuda
