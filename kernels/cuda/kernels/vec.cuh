#pragma once

// Converts elements in memory to floats in registers and back, 16 bytes at a time. Rounds once, to nearest
// even.

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/tensor/dtype.h"

namespace trainerd::kernels::cuda {

/// Number of elements in one 16-byte access.
template <class T>
constexpr int kVec = 16 / static_cast<int>(sizeof(T));

/// Packs two floats as bf16, the first in the low half.
__host__ __device__ inline std::uint32_t pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
#endif
}

/// The same as fp16.
__host__ __device__ inline std::uint32_t pack_fp16(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return to_fp16(low).bits | static_cast<std::uint32_t>(to_fp16(high).bits) << 16;
#endif
}
/// Packs as T, which has 2 bytes.
template <class T>
__host__ __device__ inline std::uint32_t pack_pair(float low, float high) {
  static_assert(sizeof(T) == 2);
  if constexpr (std::is_same_v<T, Bf16>) return pack_bf16(low, high);
  else return pack_fp16(low, high);
}

__host__ __device__ inline float widen(float x) { return x; }
__host__ __device__ inline float widen(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

__host__ __device__ inline float widen(Fp16 x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return to_float(x);
#endif
}
/// The lower or upper half of a word of two elements of T.
template <class T>
__host__ __device__ inline float widen_half(std::uint32_t word, bool upper) {
  if constexpr (std::is_same_v<T, Bf16>) return std::bit_cast<float>(upper ? word & 0xffff0000u : word << 16);
  else return widen(Fp16{static_cast<std::uint16_t>(upper ? word >> 16 : word & 0xffffu)});
}

template <class T>
__host__ __device__ inline T narrow(float x) {
  if constexpr (sizeof(T) == 2) return T{static_cast<std::uint16_t>(pack_pair<T>(x, 0.0f) & 0xffffu)};
  else return x;
}

/// N elements of T as stored in memory: 8, 16 or 32 bytes, or a single element.
template <class T, int N>
struct Raw {
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 4;
  static_assert(kWords == 2 || kWords % 4 == 0);
  std::uint32_t words[kWords];
};
template <class T>
struct Raw<T, 1> {
  T element;
};

/// The address must be a multiple of 16 bytes, or of the total size if that is smaller.
template <int N, class T>
__device__ inline Raw<T, N> fetch(const T* p) {
  Raw<T, N> raw;
  if constexpr (N == 1) {
    raw.element = *p;
  } else if constexpr (Raw<T, N>::kWords == 2) {
    const uint2 w = *reinterpret_cast<const uint2*>(p);
    raw.words[0] = w.x;
    raw.words[1] = w.y;
  } else {
#pragma unroll
    for (int i = 0; i < Raw<T, N>::kWords; i += 4) {
      const uint4 w = *reinterpret_cast<const uint4*>(reinterpret_cast<const std::uint32_t*>(p) + i);
      raw.words[i] = w.x;
      raw.words[i + 1] = w.y;
      raw.words[i + 2] = w.z;
      raw.words[i + 3] = w.w;
    }
  }
  return raw;
}

template <int N, class T>
__device__ inline void unpack(const Raw<T, N>& raw, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = widen(raw.element);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (sizeof(T) == 2) x[i] = widen_half<T>(raw.words[i / 2], i % 2 != 0);
      else x[i] = std::bit_cast<float>(raw.words[i]);
    }
  }
}

template <class T, int N>
__device__ inline Raw<T, N> pack(const float (&x)[N]) {
  Raw<T, N> raw;
  if constexpr (N == 1) {
    raw.element = narrow<T>(x[0]);
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < N; i += 2) raw.words[i / 2] = pack_pair<T>(x[i], x[i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) raw.words[i] = std::bit_cast<std::uint32_t>(x[i]);
  }
  return raw;
}

// Vector stores to global memory with their own instruction: the compiler may split a plain store into
// elements.
__device__ inline void store_words(void* p, std::uint32_t x, std::uint32_t y) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(x), "r"(y)
               : "memory");
#else
  *static_cast<uint2*>(p) = make_uint2(x, y);
#endif
}
__device__ inline void store_words(void* p, std::uint32_t x, std::uint32_t y, std::uint32_t z,
                                   std::uint32_t w) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(x), "r"(y),
               "r"(z), "r"(w)
               : "memory");
#else
  *static_cast<uint4*>(p) = make_uint4(x, y, z, w);
#endif
}

/// Only for global memory.
template <int N, class T>
__device__ inline void put(T* p, const Raw<T, N>& raw) {
  if constexpr (N == 1) {
    *p = raw.element;
  } else if constexpr (Raw<T, N>::kWords == 2) {
    store_words(p, raw.words[0], raw.words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < Raw<T, N>::kWords; i += 4)
      store_words(reinterpret_cast<std::uint32_t*>(p) + i, raw.words[i], raw.words[i + 1], raw.words[i + 2],
                  raw.words[i + 3]);
  }
}

template <int N, class T>
__device__ inline void load(const T* p, float (&x)[N]) {
  unpack<N>(fetch<N>(p), x);
}
template <int N, class T>
__device__ inline void store(T* p, const float (&x)[N]) {
  put<N>(p, pack<T>(x));
}
/// Stores, and sets `x` to the values that a later load returns.
template <int N, class T>
__device__ inline void store_and_round(T* p, float (&x)[N]) {
  const Raw<T, N> raw = pack<T>(x);
  put<N>(p, raw);
  unpack<N>(raw, x);
}

}  // namespace trainerd::kernels::cuda
