#pragma once

// Vectors of sixteen floats. A source that includes this is compiled once per instruction set (the macro
// TRAINERD_SIMD names the build and its namespace). Differences between instruction sets are only in
// simd_<set>.h. All builds perform the same operations in the same order. Results differ only by the fused
// multiply-add, which the portable build rounds twice, and by denormals in bf16.

#include <cstdint>
#include <type_traits>

#include "kernels/tensor/dtype.h"

#if !defined(TRAINERD_SIMD)
#error "TRAINERD_SIMD names the instruction set that this source is built for"
#endif

namespace trainerd::kernels::TRAINERD_SIMD {

constexpr std::int64_t kLanes = 16;
/// One fp32, or two bf16 (tile.h).
using Word = std::uint32_t;

}  // namespace trainerd::kernels::TRAINERD_SIMD

#if defined(__AVX512F__)
#include "kernels/cpu/simd/simd_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/simd/simd_avx2.h"
#else
#include "kernels/cpu/simd/simd_portable.h"
#endif

namespace trainerd::kernels::TRAINERD_SIMD {

inline Vec& operator+=(Vec& a, Vec b) { return a = a + b; }
inline Vec& operator-=(Vec& a, Vec b) { return a = a - b; }
inline Vec& operator*=(Vec& a, Vec b) { return a = a * b; }

/// 1 / sqrt(a), by a square root and a division, each correctly rounded.
inline Vec rsqrt(Vec a) { return broadcast(1.0f) / sqrt(a); }

/// Sum of the lanes as a tree: i with i + 8, then + 4, + 2, + 1.
inline double sum(Wide a) {
  double d[kLanes];
  store(d, a);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) d[i] += d[i + step];
  return d[0];
}

/// x = n ln 2 + r, |r| <= ln 2 / 2, with ln 2 in two parts (Cody and Waite), and (e^r - 1) / r by the Taylor
/// series of e^r to r^7, whose remainder is below 6e-9 relative, a tenth of a unit in the last place.
struct ReducedExp {
  Vec n, r, series;
};
inline ReducedExp reduced_exp(Vec x) {
  const Vec n = round_to_whole(x * broadcast(1.44269504088896341f));
  Vec r = fnma(n, broadcast(0.693359375f), x);
  r = fnma(n, broadcast(-2.12194440e-4f), r);
  Vec p = broadcast(1.0f / 5040.0f);
  p = fma(p, r, broadcast(1.0f / 720.0f));
  p = fma(p, r, broadcast(1.0f / 120.0f));
  p = fma(p, r, broadcast(1.0f / 24.0f));
  p = fma(p, r, broadcast(1.0f / 6.0f));
  p = fma(p, r, broadcast(0.5f));
  return {n, r, fma(p, r, broadcast(1.0f))};
}

/// e^x to within 2 units in the last place; 0 at -infinity, infinity above 88.73, NaN for NaN.
inline Vec exp(Vec x) {
  const ReducedExp e = reduced_exp(min(broadcast(89.0f), max(broadcast(-104.0f), x)));
  return scale_by_power(fma(e.series, e.r, broadcast(1.0f)), e.n);
}

/// 1 / (1 + e^-x); exact limits at both ends.
/// -1, 0 or 1 for numbers of any size, subnormal ones too.
inline Vec sign(Vec x) {
  const Vec huge = broadcast(0x1p127f);
  return max(broadcast(-1.0f), min(broadcast(1.0f), x * huge * huge));
}
inline Vec sigmoid(Vec x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(-x)); }

struct Tanh {
  Vec value;
  Vec slope;  ///< 1 - tanh^2
};
/// tanh x = m / (m + 2) with m = e^2x - 1. Small m are accurate to the last places: e^2x = 2^n (1 + q) by the
/// series of `exp`, and m = 2^n q + (2^n - 1). The slope is 4 e^2x / (m + 2)^2. NaN for NaN.
inline Tanh tanh(Vec x) {
  const ReducedExp e = reduced_exp(min(broadcast(40.0f), max(broadcast(-40.0f), x + x)));
  const Vec q = e.series * e.r, power = scale_by_power(broadcast(1.0f), e.n);
  const Vec m = fma(power, q, power - broadcast(1.0f)), inverse = broadcast(1.0f) / (m + broadcast(2.0f));
  return {m * inverse, broadcast(4.0f) * fma(power, q, power) * inverse * inverse};
}

/// Calls `body(offset, load, store)` for each run of 16 elements of [0, n) and once for the tail, where
/// `load(p)` reads the run's elements of the array p and `store(p, x)` writes them. Absent lanes of the tail
/// read as `fill`.
template <class Body>
inline void for_each_vec(std::int64_t n, const Body& body, float fill = 0.0f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body([i](const auto* p) { return load(p + i); }, [i](auto* p, Vec x) { store(p + i, x); });
  if (const std::int64_t rest = n - i; rest > 0)
    body([=](const auto* p) { return load_tail(p + i, rest, fill); },
         [=](auto* p, Vec x) { store_tail(p + i, x, rest); });
}

// Single elements. Headers outside this namespace have such functions too, but might not be inlined: see
// vector_functions.h.
inline float wide(float x) { return x; }
inline float wide(Bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16); }
inline void put_element(float* p, float x) { *p = x; }
inline void put_element(Bf16* p, float x) {  // rounds a finite number to nearest even; NaN stays NaN
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  p->bits =
      static_cast<std::uint16_t>(x != x ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline void put_element(Fp16* p, float x) { *p = half_of(x); }

/// Calls `f` with a value of the type of `dtype`: f32, bf16 or fp16.
template <class F>
inline void with_type(DType dtype, const F& f) {
  if (dtype == DType::bf16) f(Bf16{});
  else if (dtype == DType::f16) f(Fp16{});
  else f(float{});
}
/// The same for optimizer states and gradients, which are f32 or bf16.
template <class F>
inline void with_state_type(DType dtype, const F& f) {
  if (dtype == DType::bf16) f(Bf16{});
  else if (dtype == DType::f32) f(float{});
  else __builtin_trap();  // an operator let it pass
}
/// Calls `f` with values of two types, which are not bf16 and fp16 (`check_not_mixed`).
template <class F>
inline void with_types(DType a, DType b, const F& f) {
  if (a == DType::f16) return b == DType::f16 ? f(Fp16{}, Fp16{}) : f(Fp16{}, float{});
  if (b == DType::f16) return f(float{}, Fp16{});
  with_state_type(a, [&](auto x) { with_state_type(b, [&](auto y) { f(x, y); }); });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
