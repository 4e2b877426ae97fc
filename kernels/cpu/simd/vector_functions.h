#pragma once

// What the sources of the vector kernels share, and their functions by subject, in this build's namespace.
// Their contracts are those of the pointers of the same name in `VectorKernels`.

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vector_kernels.h"

namespace trainerd::kernels::TRAINERD_SIMD {

// Of functions outside this namespace only those that the compiler inlines may be called here: any other
// would be emitted with this build's instructions and could be linked for the rest of the program.

template <class T>
inline T* as(std::byte* p) {
  return reinterpret_cast<T*>(p);
}
template <class T>
inline const T* as(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}
/// Element `index` of a tensor, whose dtype the caller has looked at; null when it is undefined.
template <class T>
inline T* at(const Tensor& x, std::int64_t index = 0) {
  return x.data == nullptr ? nullptr : reinterpret_cast<T*>(x.data) + index;
}

/// Writes n zeros.
template <class T>
inline void clear(T* p, std::int64_t n) {
  __builtin_memset(static_cast<void*>(p), 0, static_cast<std::size_t>(n) * sizeof(T));
}

/// Calls `f` with a value of the type that `dtype` names: float or Bf16.
template <class F>
inline void with_type(DType dtype, const F& f) {
  if (dtype == DType::bf16)
    f(Bf16{});
  else
    f(float{});
}

// mlp_kernels.cpp
void glu_forward(DType, const std::byte*, std::byte*, std::int64_t, std::int64_t);
void glu_backward(DType, const std::byte*, const std::byte*, std::byte*, std::byte*, std::int64_t,
                  std::int64_t);
void gelu_forward(DType, const std::byte*, std::byte*, std::int64_t);
void gelu_backward(DType, const std::byte*, const std::byte*, std::byte*, std::int64_t);

// norm_kernels.cpp
void add_norm_forward(const AddNormForward&, std::int64_t, std::int64_t);
void add_norm_backward(const AddNormBackward&, std::int64_t, std::int64_t, float*, float*);
void sum_partials(const float*, std::int64_t, std::int64_t, std::int64_t, DType, std::byte*, WriteMode);

// rope_kernels.cpp
void qk_norm_rope_forward(const QkNormRopeForward&, std::int64_t, std::int64_t);
void qk_norm_rope_backward(const QkNormRopeBackward&, std::int64_t, std::int64_t, float*, float*);

// embedding_kernels.cpp
void embedding_forward(const EmbeddingForward&, std::int64_t, std::int64_t);
void embedding_row(const EmbeddingBackward&, std::int64_t, const std::int32_t*, std::int64_t);

// loss_kernels.cpp
void ce_stats(const CeStats&, std::int64_t, std::int64_t);
void ce_finish(const CeFinish&, std::int64_t, std::int64_t);

// flat_kernels.cpp
void add(DType, const std::byte*, const std::byte*, std::byte*, std::int64_t);
void scale(DType, std::byte*, float, std::int64_t);
void cast(DType, const std::byte*, DType, std::byte*, std::int64_t);
double square_sum(DType, const std::byte*, std::int64_t);
void hash_words(const std::byte*, std::int64_t, std::int64_t, std::uint32_t[2]);
void adamw(const AdamwRun&);

}  // namespace trainerd::kernels::TRAINERD_SIMD
