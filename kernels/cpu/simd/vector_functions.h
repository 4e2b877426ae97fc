#pragma once

// Helpers of the vector kernels' sources, and their functions by subject, in this build's namespace.
// Contracts: see the pointers of the same names in `VectorKernels`.

#include <type_traits>

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vector_kernels.h"

namespace trainerd::kernels::TRAINERD_SIMD {

// Outside this namespace, only functions that the compiler inlines may be called here. Any other would be
// emitted with this build's instructions and could be linked into the rest of the program.

template <class T>
inline T* as(std::byte* p) {
  return reinterpret_cast<T*>(p);
}
template <class T>
inline const T* as(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}
/// Element `index` of a tensor whose dtype the caller has checked; null if it is undefined.
template <class T>
inline T* at(const Tensor& x, std::int64_t index = 0) {
  return x.data == nullptr ? nullptr : reinterpret_cast<T*>(x.data) + index;
}

/// Writes n zeros.
template <class T>
inline void clear(T* p, std::int64_t n) {
  __builtin_memset(static_cast<void*>(p), 0, static_cast<std::size_t>(n) * sizeof(T));
}

// Each is defined in the source of its subject: mlp_kernels.cpp, norm_kernels.cpp, ...
#define TRAINERD_DECLARE(name) std::remove_pointer_t<decltype(VectorKernels::name)> name;
TRAINERD_VECTOR_KERNELS(TRAINERD_DECLARE)
#undef TRAINERD_DECLARE

}  // namespace trainerd::kernels::TRAINERD_SIMD
