#include "kernels/cpu/kernel_tables.h"

#include <string>

#include "kernels/base/error.h"

namespace trainerd::kernels {
namespace {

base::DeviceError no_kernels(Isa isa) {
  return base::device_error(std::string("this build has no ") + to_string(isa) +
                            " kernels: use the portable ones or build for x86-64");
}

}  // namespace

const VectorKernels& vector_kernels_of(Isa isa) {
  switch (isa) {
    case Isa::portable: return portable::vector_kernels();
#if defined(TRAINERD_X86_KERNELS)
    case Isa::avx2: return avx2::vector_kernels();
    case Isa::avx512: return avx512::vector_kernels();
    case Isa::avx512_bf16: return avx512_bf16::vector_kernels();
#else
    default: break;
#endif
  }
  throw no_kernels(isa);
}

const AttentionKernels& attention_kernels_of(Isa isa) {
  switch (isa) {
    case Isa::portable: return portable::attention_kernels();
#if defined(TRAINERD_X86_KERNELS)
    case Isa::avx2: return avx2::attention_kernels();
    case Isa::avx512: return avx512::attention_kernels();
    case Isa::avx512_bf16: return avx512_bf16::attention_kernels();
#else
    default: break;
#endif
  }
  throw no_kernels(isa);
}

const GemmKernels& gemm_kernels_of(Isa isa) {
  switch (isa) {
    case Isa::portable: return portable::gemm_kernels();
#if defined(TRAINERD_X86_KERNELS)
    case Isa::avx2: return avx2::gemm_kernels();
    case Isa::avx512: return avx512::gemm_kernels();
    case Isa::avx512_bf16: return avx512_bf16::gemm_kernels();
#else
    default: break;
#endif
  }
  throw no_kernels(isa);
}

}  // namespace trainerd::kernels
