#include "kernels/cpu/simd/vector_kernels.h"

#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {

const VectorKernels& vector_kernels() {
#define TRAINERD_ENTRY(name) .name = name,
  static constexpr VectorKernels kTable{TRAINERD_VECTOR_KERNELS(TRAINERD_ENTRY)};
#undef TRAINERD_ENTRY
  return kTable;
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
