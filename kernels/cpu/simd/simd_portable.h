#pragma once

// simd.h for any host: four registers of four lanes, with the compiler's generic vectors.

namespace trainerd::kernels::TRAINERD_SIMD {

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

// Convert two quads to and from eight bf16 by shuffles of halves, on little-endian hosts. The compiler's
// conversions between vectors of different element sizes go lane by lane on baseline x86-64.
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

inline float wide(Fp16 x) { return to_float(x); }
inline Fp16 half_of(float x) { return to_fp16(x); }
inline Vec load_tail(const Fp16* p, std::int64_t count, float fill = 0.0f) {
  float lanes[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? to_float(p[i]) : fill;
  return load(lanes);
}
inline void store_tail(Fp16* p, Vec x, std::int64_t count) {
  float lanes[kLanes];
  store(lanes, x);
  for (std::int64_t i = 0; i < count; ++i) p[i] = to_fp16(lanes[i]);
}
inline Vec load(const Fp16* p) { return load_tail(p, kLanes); }
inline void store(Fp16* p, Vec x) { store_tail(p, x, kLanes); }

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

// ---- Words, of tile.h

/// Sums of six rows by one vector take 24 registers of four lanes.
constexpr int kTileVectors = 1;

struct Words {
  QuadBits q[4];
};
inline Words load_words(const Word* p) {
  Words x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store_words(Word* p, Words x) { __builtin_memcpy(p, &x, sizeof(x)); }
inline Words broadcast_word(const Word* p) {
  Word w;  // by memcpy: the word may have been written as floats
  __builtin_memcpy(&w, p, sizeof(w));
  const QuadBits q = QuadBits{w, w, w, w};
  return {{q, q, q, q}};
}

template <class T>
inline Vec dot(Vec sum, Words a, Words b);
template <>
inline Vec dot<float>(Vec sum, Words a, Words b) {
  return each([&](int i) { return (Quad)a.q[i] * (Quad)b.q[i] + sum.q[i]; });
}
template <>
inline Vec dot<Bf16>(Vec sum, Words a, Words b) {
  return each([&](int i) {
    const QuadBits upper = QuadBits{0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    const Quad high = (Quad)(a.q[i] & upper) * (Quad)(b.q[i] & upper) + sum.q[i];
    return (Quad)(a.q[i] << 16) * (Quad)(b.q[i] << 16) + high;
  });
}

inline void interleave(const Bf16* low, const Bf16* high, Word* out) {
  for (int i = 0; i < kLanes; ++i)
    out[i] = static_cast<Word>(low[i].bits) | static_cast<Word>(high[i].bits) << 16;
}
inline void interleave(Vec low, Vec high, Word* out) {
  Bf16 a[kLanes], b[kLanes];
  store(a, low);
  store(b, high);
  interleave(a, b, out);
}
inline void transpose_16x16(const Word* in, std::int64_t in_stride, Word* out, std::int64_t out_stride) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) out[j * out_stride + i] = in[i * in_stride + j];
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
