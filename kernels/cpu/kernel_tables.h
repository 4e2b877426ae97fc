#pragma once

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/simd/gemm_kernels.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

// The kernels of an instruction set in this build. On processors other than x86-64 only the portable ones
// exist. Throws DeviceError for others.
const VectorKernels& vector_kernels_of(Isa isa);
const AttentionKernels& attention_kernels_of(Isa isa);
const GemmKernels& gemm_kernels_of(Isa isa);

}  // namespace trainerd::kernels
