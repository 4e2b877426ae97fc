#pragma once

// Sixteen floats at a time. One source that includes this is compiled once for every instruction set (the
// macro TRAINERD_SIMD names the build and its namespace); all switches on the instruction set are in this
// header. Both builds perform the same operations in the same order, so they differ only by the fused
// multiply-add, which the portable build rounds twice.

#include <cstdint>
#include <type_traits>

#include "kernels/dtype.h"

#if defined(__AVX512F__)
// GCC's own header makes its "undefined" registers by self-initialisation and then warns of it (GCC bug
// 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#if !defined(TRAINERD_SIMD)
#error "TRAINERD_SIMD names the instruction set that this source is built for"
#endif

namespace trainerd::kernels::TRAINERD_SIMD {

constexpr std::int64_t kLanes = 16;

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};
/// Sixteen doubles: lanes 0..7 and 8..15.
struct Wide {
  __m512d low, high;
};
using Mask = __mmask16;

inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec operator-(Vec a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
/// a * b + c, rounded once here and twice in the portable build.
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// c - a * b
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
/// The second operand when either is a NaN.
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m, no.v, yes.v)}; }
/// The first `count` lanes, 0 <= count <= 16.
inline Mask first_lanes(std::int64_t count) { return static_cast<Mask>((1u << count) - 1u); }

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline Vec load_tail(const float* p, std::int64_t count, float fill = 0.0f) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first_lanes(count), p)};
}
inline void store_tail(float* p, Vec x, std::int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), x.v);
}

inline Vec widen(__m256i half) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
/// Denormals become zero: vcvtneps2bf16 ignores the rounding and denormal modes.
inline __m256i narrow(Vec x) { return (__m256i)_mm512_cvtneps_pbh(x.v); }
inline Vec load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline void store(Bf16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
inline Vec load_tail(const Bf16* p, std::int64_t count, float fill = 0.0f) {
  const Vec x = widen(_mm256_maskz_loadu_epi16(first_lanes(count), p));
  return select(first_lanes(count), x, broadcast(fill));
}
inline void store_tail(Bf16* p, Vec x, std::int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), narrow(x));
}
/// The value that a store in bf16 and a load would give.
inline Vec round_to_bf16(Vec x) { return widen(narrow(x)); }

/// Sum of the lanes as a tree: i with i + 8, then + 4, + 2, + 1.
inline float sum(Vec a) {
  const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
inline float max_of(Vec a) {
  const __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

/// 2^n for lanes holding whole numbers, times x; overflows to infinity and underflows gradually.
inline Vec scale_by_power(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }
inline Vec round_to_whole(Vec x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

inline Wide wide_zero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline Wide to_wide(Vec x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))};
}
inline Wide operator+(Wide a, Wide b) { return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)}; }
inline Wide operator*(Wide a, Wide b) { return {_mm512_mul_pd(a.low, b.low), _mm512_mul_pd(a.high, b.high)}; }
inline void store(double* p, Wide a) {
  _mm512_storeu_pd(p, a.low);
  _mm512_storeu_pd(p + 8, a.high);
}

#else  // portable: four registers of four lanes, by the compiler's generic vectors

typedef float Quad __attribute__((vector_size(16)));
typedef std::int32_t QuadInt __attribute__((vector_size(16)));
typedef std::uint32_t QuadBits __attribute__((vector_size(16)));
typedef std::uint16_t Halves __attribute__((vector_size(16)));
typedef double Pair __attribute__((vector_size(16)));

struct Vec {
  Quad q[4];
};
struct Wide {
  Pair p[8];
};
struct Mask {
  QuadInt q[4];
};

template <class F>
inline Vec each(const F& f) {
  return {{f(0), f(1), f(2), f(3)}};
}

inline Quad quad(float x) { return Quad{x, x, x, x}; }
inline Vec broadcast(float x) { return {{quad(x), quad(x), quad(x), quad(x)}}; }
inline Vec zero() { return broadcast(0.0f); }
inline Vec operator+(Vec a, Vec b) {
  return each([&](int i) { return a.q[i] + b.q[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return each([&](int i) { return a.q[i] - b.q[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return each([&](int i) { return a.q[i] * b.q[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return each([&](int i) { return a.q[i] / b.q[i]; });
}
inline Vec operator-(Vec a) {
  return each([&](int i) { return -a.q[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return each([&](int i) { return a.q[i] * b.q[i] + c.q[i]; });
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  return each([&](int i) { return c.q[i] - a.q[i] * b.q[i]; });
}
inline Vec max(Vec a, Vec b) {
  return each([&](int i) { return a.q[i] > b.q[i] ? a.q[i] : b.q[i]; });
}
inline Vec min(Vec a, Vec b) {
  return each([&](int i) { return a.q[i] < b.q[i] ? a.q[i] : b.q[i]; });
}
inline Vec sqrt(Vec a) {
  return each([&](int i) {
    return Quad{__builtin_sqrtf(a.q[i][0]), __builtin_sqrtf(a.q[i][1]), __builtin_sqrtf(a.q[i][2]),
                __builtin_sqrtf(a.q[i][3])};
  });
}
inline Mask less(Vec a, Vec b) {
  return {{a.q[0] < b.q[0], a.q[1] < b.q[1], a.q[2] < b.q[2], a.q[3] < b.q[3]}};
}
inline Vec select(Mask m, Vec yes, Vec no) {
  return each([&](int i) { return m.q[i] ? yes.q[i] : no.q[i]; });
}
inline Mask first_lanes(std::int64_t count) {
  const int n = static_cast<int>(count);
  Mask m;
  for (int i = 0; i < 4; ++i) m.q[i] = QuadInt{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3} < QuadInt{n, n, n, n};
  return m;
}

inline Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof(x)); }
inline Vec load_tail(const float* p, std::int64_t count, float fill = 0.0f) {
  float lanes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? p[i] : fill;
  return load(lanes);
}
inline void store_tail(float* p, Vec x, std::int64_t count) {
  float lanes[kLanes];
  store(lanes, x);
  for (std::int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

// Two quads to and from eight bf16 by shuffles of halves, on little-endian hosts: the compiler's conversions
// between vectors of unlike element sizes go lane by lane on baseline x86-64.
inline void widen(Halves h, Quad& low, Quad& high) {
  const Halves none{};
  low = (Quad)__builtin_shufflevector(none, h, 0, 8, 1, 9, 2, 10, 3, 11);
  high = (Quad)__builtin_shufflevector(none, h, 4, 12, 5, 13, 6, 14, 7, 15);
}
/// Rounded to nearest even, in the upper half of each lane; a NaN stays a NaN.
inline Quad round_half(Quad x) {
  const QuadBits u = (QuadBits)x;
  return (Quad)(x == x ? u + 0x7fffu + ((u >> 16) & 1u) : u | 0x400000u);
}
inline Halves narrow(Quad low, Quad high) {
  return __builtin_shufflevector((Halves)round_half(low), (Halves)round_half(high), 1, 3, 5, 7, 9, 11, 13,
                                 15);
}
inline Vec load(const Bf16* p) {
  Halves h[2];
  __builtin_memcpy(h, p, sizeof(h));
  Vec x;
  widen(h[0], x.q[0], x.q[1]);
  widen(h[1], x.q[2], x.q[3]);
  return x;
}
inline void store(Bf16* p, Vec x) {
  const Halves h[2] = {narrow(x.q[0], x.q[1]), narrow(x.q[2], x.q[3])};
  __builtin_memcpy(static_cast<void*>(p), h, sizeof(h));
}
inline Vec load_tail(const Bf16* p, std::int64_t count, float fill = 0.0f) {
  float lanes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? to_float(p[i]) : fill;
  return load(lanes);
}
inline void store_tail(Bf16* p, Vec x, std::int64_t count) {
  Bf16 lanes[kLanes];
  store(lanes, x);
  for (std::int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}
inline Vec round_to_bf16(Vec x) {
  return each([&](int i) { return (Quad)((QuadBits)round_half(x.q[i]) & 0xffff0000u); });
}

inline float sum(Vec a) {
  const Quad y = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (y[0] + y[2]) + (y[1] + y[3]);
}
inline float max_of(Vec a) {
  const auto larger = [](Quad x, Quad y) { return x > y ? x : y; };
  const Quad y = larger(larger(a.q[0], a.q[2]), larger(a.q[1], a.q[3]));
  const float u = y[0] > y[2] ? y[0] : y[2], v = y[1] > y[3] ? y[1] : y[3];
  return u > v ? u : v;
}

/// For whole n in [-252, 254]. Two factors, so that the result may be denormal or overflow.
inline Vec scale_by_power(Vec x, Vec n) {
  return each([&](int i) {
    const QuadInt whole = __builtin_convertvector(n.q[i], QuadInt);
    const QuadInt half = whole >> 1;
    return x.q[i] * (Quad)((half + 127) << 23) * (Quad)((whole - half + 127) << 23);
  });
}
/// For |x| < 2^22.
inline Vec round_to_whole(Vec x) {
  const Vec magic = broadcast(12582912.0f);
  return (x + magic) - magic;
}

inline Wide wide_zero() { return {}; }
inline Wide to_wide(Vec x) {
  Wide w;
  for (int i = 0; i < 8; ++i) w.p[i] = Pair{x.q[i / 2][i % 2 * 2], x.q[i / 2][i % 2 * 2 + 1]};
  return w;
}
inline Wide operator+(Wide a, Wide b) {
  for (int i = 0; i < 8; ++i) a.p[i] += b.p[i];
  return a;
}
inline Wide operator*(Wide a, Wide b) {
  for (int i = 0; i < 8; ++i) a.p[i] *= b.p[i];
  return a;
}
inline void store(double* p, Wide a) { __builtin_memcpy(p, &a, sizeof(a)); }

#endif

inline Vec& operator+=(Vec& a, Vec b) { return a = a + b; }
inline Vec& operator-=(Vec& a, Vec b) { return a = a - b; }
inline Vec& operator*=(Vec& a, Vec b) { return a = a * b; }

/// 1 / sqrt(a), by a square root and a division: correctly rounded twice.
inline Vec rsqrt(Vec a) { return broadcast(1.0f) / sqrt(a); }

/// Sum of the lanes as a tree: i with i + 8, then + 4, + 2, + 1.
inline double sum(Wide a) {
  double d[kLanes];
  store(d, a);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) d[i] += d[i + step];
  return d[0];
}

/// e^x to within 2 units in the last place; 0 at -infinity, infinity above 88.73, NaN for NaN.
/// Range reduction x = n ln 2 + r with ln 2 in two parts (Cody and Waite), then e^r for |r| <= ln 2 / 2 by
/// the Taylor series to r^7, whose remainder is below 6e-9 relative, a tenth of a unit in the last place.
inline Vec exp(Vec x) {
  x = min(broadcast(89.0f), max(broadcast(-104.0f), x));
  const Vec n = round_to_whole(x * broadcast(1.44269504088896341f));
  Vec r = fnma(n, broadcast(0.693359375f), x);
  r = fnma(n, broadcast(-2.12194440e-4f), r);
  Vec p = broadcast(1.0f / 5040.0f);
  p = fma(p, r, broadcast(1.0f / 720.0f));
  p = fma(p, r, broadcast(1.0f / 120.0f));
  p = fma(p, r, broadcast(1.0f / 24.0f));
  p = fma(p, r, broadcast(1.0f / 6.0f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return scale_by_power(p, n);
}

/// 1 / (1 + e^-x); exact limits at both ends.
inline Vec sigmoid(Vec x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(-x)); }

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

}  // namespace trainerd::kernels::TRAINERD_SIMD
