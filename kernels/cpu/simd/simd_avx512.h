#pragma once

// simd.h for AVX-512 (F, BW, DQ, VL): one register of sixteen floats. A build with BF16 uses its conversion
// and dot product; other builds use integer and fp32 operations.

// GCC's own header makes "undefined" registers by self-initialisation and then warns about it (GCC bug
// 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace trainerd::kernels::TRAINERD_SIMD {

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
/// Returns the second operand if either is a NaN.
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
#if defined(__AVX512BF16__)
/// Denormals become zero: vcvtneps2bf16 ignores the rounding and denormal modes.
inline __m256i narrow(Vec x) { return (__m256i)_mm512_cvtneps_pbh(x.v); }
#else
/// Rounded to nearest even; a NaN stays a NaN.
inline __m256i narrow(Vec x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_or_epi32(up, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
#endif
inline Vec load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline void store(Bf16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
inline Vec load_tail(const Bf16* p, std::int64_t count, float fill = 0.0f) {
  const Vec x = widen(_mm256_maskz_loadu_epi16(first_lanes(count), p));
  return select(first_lanes(count), x, broadcast(fill));
}
inline void store_tail(Bf16* p, Vec x, std::int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), narrow(x));
}

inline float wide(Fp16 x) {
  return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_cvtsi32_si128(x.bits))));
}
/// Rounded to nearest even.
inline __m256i to_half(Vec x) { return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Fp16 half_of(float x) {
  return {static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(to_half(broadcast(x)))))};
}
inline Vec load(const Fp16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store(Fp16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_half(x)); }
inline Vec load_tail(const Fp16* p, std::int64_t count, float fill = 0.0f) {
  const Vec x{_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), p))};
  return select(first_lanes(count), x, broadcast(fill));
}
inline void store_tail(Fp16* p, Vec x, std::int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), to_half(x));
}

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

/// 2^n x for whole n; overflows to infinity and underflows gradually.
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

// ---- Words, of tile.h

/// Sums of six rows by four vectors take 24 of 32 registers.
constexpr int kTileVectors = 4;

struct Words {
  __m512i v;
};
inline Words load_words(const Word* p) { return {_mm512_loadu_si512(p)}; }
inline void store_words(Word* p, Words x) { _mm512_storeu_si512(p, x.v); }
inline Words broadcast_word(const Word* p) {
  int w;  // by memcpy: the word may have been written as floats
  __builtin_memcpy(&w, p, sizeof(w));
  return {_mm512_set1_epi32(w)};
}

template <class T>
inline Vec dot(Vec sum, Words a, Words b);
template <>
inline Vec dot<float>(Vec sum, Words a, Words b) {
  return {_mm512_fmadd_ps(_mm512_castsi512_ps(a.v), _mm512_castsi512_ps(b.v), sum.v)};
}
template <>
inline Vec dot<Bf16>(Vec sum, Words a, Words b) {
#if defined(__AVX512BF16__)
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)};
#else
  // Of each pair, adds the upper bf16 first.
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto high = [&](__m512i w) { return _mm512_castsi512_ps(_mm512_and_si512(w, upper)); };
  const auto low = [](__m512i w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); };
  return {_mm512_fmadd_ps(low(a.v), low(b.v), _mm512_fmadd_ps(high(a.v), high(b.v), sum.v))};
#endif
}

/// Words of two rows of bf16: lane i is (low[i], high[i]).
inline void interleave(const Bf16* low, const Bf16* high, Word* out) {
  const __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
  const __m512i b = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
  _mm512_storeu_si512(out, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}
/// The same from floats, rounded to bf16.
inline void interleave(Vec low, Vec high, Word* out) {
  const __m512i a = _mm512_cvtepu16_epi32(narrow(low));
  const __m512i b = _mm512_cvtepu16_epi32(narrow(high));
  _mm512_storeu_si512(out, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

/// Transposes 16 x 16 words: out[j * out_stride + i] = in[i * in_stride + j].
inline void transpose_16x16(const Word* in, std::int64_t in_stride, Word* out, std::int64_t out_stride) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(in + i * in_stride);
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(out + i * out_stride, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_si512(out + (i + 4) * out_stride, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_storeu_si512(out + (i + 8) * out_stride, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
    _mm512_storeu_si512(out + (i + 12) * out_stride, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
  }
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
