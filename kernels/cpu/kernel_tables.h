#pragma once

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/simd/gemm_kernels.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

// The kernels of an instruction set that this build has. On other processors than x86-64 that is the portable
// one.
const VectorKernels& vector_kernels_of(Isa isa);
const AttentionKernels& attention_kernels_of(Isa isa);
const GemmKernels& gemm_kernels_of(Isa isa);

}  // namespace trainerd::kernels
