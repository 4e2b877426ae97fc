#pragma once

// simd.h for AVX2 with FMA: two registers of eight floats.

#include <immintrin.h>

namespace trainerd::kernels::TRAINERD_SIMD {

struct Vec {
  __m256 low, high;
};
/// Sixteen doubles, four to a register.
struct Wide {
  __m256d part[4];
};
/// A set lane has all bits set.
struct Mask {
  __m256i low, high;
};

inline Vec broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Vec operator-(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
/// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
/// c - a * b
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
/// Returns the second operand if either is a NaN.
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
inline Mask less(Vec a, Vec b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline Vec select(Mask m, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_castsi256_ps(m.low)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_castsi256_ps(m.high))};
}
/// The first `count` lanes, 0 <= count <= 16.
inline Mask first_lanes(std::int64_t count) {
  const __m256i n = _mm256_set1_epi32(static_cast<int>(count));
  return {_mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
          _mm256_cmpgt_epi32(n, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}

inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline Vec load_tail(const float* p, std::int64_t count, float fill = 0.0f) {
  const Mask m = first_lanes(count);
  return select(m, {_mm256_maskload_ps(p, m.low), _mm256_maskload_ps(p + 8, m.high)}, broadcast(fill));
}
inline void store_tail(float* p, Vec x, std::int64_t count) {
  const Mask m = first_lanes(count);
  _mm256_maskstore_ps(p, m.low, x.low);
  _mm256_maskstore_ps(p + 8, m.high, x.high);
}

inline __m256 widen(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
/// Rounded to nearest even, in the upper half of each lane; a NaN stays a NaN.
inline __m256i round_half(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
/// The lanes in order, as sixteen bf16.
inline __m256i narrow(Vec x) {
  // The pack works within 128-bit halves: four low lanes, four high ones, and so on. The permutation restores
  // order.
  const __m256i crossed = _mm256_packus_epi32(_mm256_srli_epi32(round_half(x.low), 16),
                                              _mm256_srli_epi32(round_half(x.high), 16));
  return _mm256_permute4x64_epi64(crossed, 0xd8);
}
inline Vec load(const Bf16* p) {
  return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store(Bf16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
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

inline float wide(Fp16 x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits))); }
/// Rounded to nearest even.
inline Fp16 half_of(float x) {
  return {
      static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)))};
}
inline Vec load(const Fp16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store(Fp16* p, Vec x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.low, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.high, kNearest));
}
inline Vec load_tail(const Fp16* p, std::int64_t count, float fill = 0.0f) {
  Fp16 halves[kLanes] = {};
  __builtin_memcpy(static_cast<void*>(halves), p, static_cast<std::size_t>(count) * sizeof(Fp16));
  return select(first_lanes(count), load(halves), broadcast(fill));
}
inline void store_tail(Fp16* p, Vec x, std::int64_t count) {
  Fp16 halves[kLanes];
  store(halves, x);
  __builtin_memcpy(static_cast<void*>(p), halves, static_cast<std::size_t>(count) * sizeof(Fp16));
}

/// Sum of the lanes as a tree: i with i + 8, then + 4, + 2, + 1.
inline float sum(Vec a) {
  const __m256 x = _mm256_add_ps(a.low, a.high);
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
inline float max_of(Vec a) {
  const __m256 x = _mm256_max_ps(a.low, a.high);
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

inline __m256 scale_by_power(__m256 x, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1),
                bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i exponent) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, bias), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(whole, half)));
}
/// 2^n x for whole n in [-252, 254]. Two factors, so that the result may be denormal or overflow.
inline Vec scale_by_power(Vec x, Vec n) {
  return {scale_by_power(x.low, n.low), scale_by_power(x.high, n.high)};
}
inline Vec round_to_whole(Vec x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kNearest), _mm256_round_ps(x.high, kNearest)};
}

inline Wide wide_zero() {
  const __m256d none = _mm256_setzero_pd();
  return {{none, none, none, none}};
}
inline Wide to_wide(Vec x) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(x.low)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)),
           _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1))}};
}
inline Wide operator+(Wide a, Wide b) {
  for (int i = 0; i < 4; ++i) a.part[i] = _mm256_add_pd(a.part[i], b.part[i]);
  return a;
}
inline Wide operator*(Wide a, Wide b) {
  for (int i = 0; i < 4; ++i) a.part[i] = _mm256_mul_pd(a.part[i], b.part[i]);
  return a;
}
inline void store(double* p, Wide a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.part[i]);
}

// ---- Words, of tile.h

/// Sums of six rows by one vector take twelve of sixteen registers.
constexpr int kTileVectors = 1;

struct Words {
  __m256i low, high;
};
inline Words load_words(const Word* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store_words(Word* p, Words x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.high);
}
inline Words broadcast_word(const Word* p) {
  float w;  // by memcpy: the word may have been written as floats
  __builtin_memcpy(&w, p, sizeof(w));
  const __m256i all = _mm256_castps_si256(_mm256_set1_ps(w));
  return {all, all};
}

template <class T>
inline Vec dot(Vec sum, Words a, Words b);
template <>
inline Vec dot<float>(Vec sum, Words a, Words b) {
  return {_mm256_fmadd_ps(_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(b.low), sum.low),
          _mm256_fmadd_ps(_mm256_castsi256_ps(a.high), _mm256_castsi256_ps(b.high), sum.high)};
}
/// Of each pair, adds the upper bf16 first.
inline __m256 dot_pairs(__m256 sum, __m256i a, __m256i b) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const auto high = [&](__m256i w) { return _mm256_castsi256_ps(_mm256_and_si256(w, upper)); };
  const auto low = [](__m256i w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); };
  return _mm256_fmadd_ps(low(a), low(b), _mm256_fmadd_ps(high(a), high(b), sum));
}
template <>
inline Vec dot<Bf16>(Vec sum, Words a, Words b) {
  return {dot_pairs(sum.low, a.low, b.low), dot_pairs(sum.high, a.high, b.high)};
}

/// Words of two rows of bf16: lane i is (low[i], high[i]).
inline void interleave(const Bf16* low, const Bf16* high, Word* out) {
  for (int i = 0; i < 16; i += 8) {
    const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low + i)));
    const __m256i b = _mm256_castps_si256(widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high + i))));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_or_si256(a, b));
  }
}
/// The same from floats, rounded to bf16.
inline void interleave(Vec low, Vec high, Word* out) {
  const auto pairs = [](__m256 a, __m256 b) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm256_or_si256(_mm256_srli_epi32(round_half(a), 16), _mm256_and_si256(round_half(b), upper));
  };
  store_words(out, {pairs(low.low, high.low), pairs(low.high, high.high)});
}

/// Transposes 8 x 8 words.
inline void transpose_8x8(const Word* in, std::int64_t in_stride, Word* out, std::int64_t out_stride) {
  __m256i r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i * in_stride));
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * out_stride),
                        _mm256_permute2x128_si256(r[i], r[i + 4], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (i + 4) * out_stride),
                        _mm256_permute2x128_si256(r[i], r[i + 4], 0x31));
  }
}
/// Transposes 16 x 16 words: out[j * out_stride + i] = in[i * in_stride + j].
inline void transpose_16x16(const Word* in, std::int64_t in_stride, Word* out, std::int64_t out_stride) {
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 16; j += 8)
      transpose_8x8(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
