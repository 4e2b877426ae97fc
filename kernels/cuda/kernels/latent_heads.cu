// Heads of latent attention. Bytes: each input and output once. Floor = bytes / memory bandwidth.

#include "kernels/cuda/kernels/flat.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// Sizes of heads, in elements: R rotated and `own` others of a key, V of a value.
struct LatentShape {
  int H, E, V, R, own;
  std::int64_t q_columns, kv_columns;

  explicit LatentShape(const HeadGeometry& heads, const Tensor& rope_table_SR)
      : H(static_cast<int>(heads.heads)),
        E(static_cast<int>(heads.head_size)),
        V(static_cast<int>(heads.values_size())),
        R(static_cast<int>(rope_table_SR.size(1))),
        own(E - R),
        q_columns(heads.query_columns()),
        kv_columns(heads.heads * own + heads.value_columns()) {}
  /// True if runs of n elements lie within the parts of a head.
  bool splits_by(int n) const { return R % n == 0 && own % n == 0 && V % n == 0; }
};

/// Rotates the pairs of x, N elements from an even element e of the rotated ones on. `kSign` -1: back.
template <int N, int kSign>
__device__ inline void rotate_pairs(float (&x)[N], int e, const float* angles, int R) {
  static_assert(N % 2 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const float cosine = angles[(e + i) / 2], sine = static_cast<float>(kSign) * angles[R / 2 + (e + i) / 2],
                first = x[i], second = x[i + 1];
    x[i] = fmaf(-second, sine, first * cosine);
    x[i + 1] = fmaf(first, sine, second * cosine);
  }
}

/// Writes N elements from element e of R elements `x`, rotated, to `to`.
template <int N, int kSign, class T>
__device__ inline void put_rotated(const T* x, int e, const float* angles, int R, T* to) {
  if constexpr (N == 1) {
    float pair[2] = {widen(x[e & ~1]), widen(x[e | 1])};
    rotate_pairs<2, kSign>(pair, e & ~1, angles, R);
    *to = narrow<T>(pair[e & 1]);
  } else {
    float y[N];
    load<N>(x + e, y);
    rotate_pairs<N, kSign>(y, e, angles, R);
    store<N>(to, y);
  }
}

template <int N, class T>
__device__ inline void copy_run(const T* from, T* to) {
  put<N>(to, fetch<N>(from));
}

/// Elements of qkv.
template <class T>
struct LatentForwardBody {
  LatentShape s;
  const T *q, *kv, *k_rope;
  const std::int32_t* positions;
  const float* table;
  T* qkv;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int64_t columns = 2 * s.q_columns + s.H * s.V, t = i / columns;
    int c = static_cast<int>(i % columns);
    const float* angles = table + static_cast<std::int64_t>(positions[t]) * s.R;
    const bool query = c < s.q_columns;
    if (!query) c -= static_cast<int>(s.q_columns);
    if (!query && c >= s.q_columns) {  // a value
      c -= static_cast<int>(s.q_columns);
      return copy_run<N>(kv + t * s.kv_columns + c / s.V * (s.own + s.V) + s.own + c % s.V, qkv + i);
    }
    const int h = c / s.E, e = c % s.E;
    if (e < s.own)
      return copy_run<N>(query ? q + t * s.q_columns + c : kv + t * s.kv_columns + h * (s.own + s.V) + e,
                         qkv + i);
    put_rotated<N, 1>(query ? q + t * s.q_columns + h * s.E + s.own : k_rope + t * s.R, e - s.own, angles,
                      s.R, qkv + i);
  }
};

/// Elements of dq and dkv: of a token the former, then the latter.
template <class T>
struct LatentBackwardBody {
  LatentShape s;
  const T* dqkv;
  const std::int32_t* positions;
  const float* table;
  T *dq, *dkv;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int64_t columns = s.q_columns + s.kv_columns, t = i / columns;
    int c = static_cast<int>(i % columns);
    const T* row = dqkv + t * (2 * s.q_columns + s.H * s.V);
    if (c >= s.q_columns) {
      c -= static_cast<int>(s.q_columns);
      const int h = c / (s.own + s.V), e = c % (s.own + s.V);
      return copy_run<N>(
          e < s.own ? row + s.q_columns + h * s.E + e : row + 2 * s.q_columns + h * s.V + e - s.own,
          dkv + t * s.kv_columns + c);
    }
    T* const to = dq + t * s.q_columns + c;
    const int h = c / s.E, e = c % s.E;
    if (e < s.own) return copy_run<N>(row + c, to);
    put_rotated<N, -1>(row + h * s.E + s.own, e - s.own,
                       table + static_cast<std::int64_t>(positions[t]) * s.R, s.R, to);
  }
};

/// N elements, or one pair, of the shared ones: sums over the heads, rotated back.
template <class T>
struct LatentSharedBody {
  LatentShape s;
  const T* dqkv;
  const std::int32_t* positions;
  const float* table;
  T* dk_rope;

  template <int N>
  __device__ void at(std::int64_t i) const {
    constexpr int kEach = N == 1 ? 2 : N;
    const std::int64_t first = N == 1 ? 2 * i : i, t = first / s.R;
    const int e = static_cast<int>(first % s.R);
    const T* keys = dqkv + t * (2 * s.q_columns + s.H * s.V) + s.q_columns + s.own + e;
    float sums[kEach] = {};
#pragma unroll 4
    for (int h = 0; h < s.H; ++h) {
      float x[kEach];
      if constexpr (N == 1) x[0] = widen(keys[h * s.E]), x[1] = widen(keys[h * s.E + 1]);
      else load<kEach>(keys + h * s.E, x);
#pragma unroll
      for (int k = 0; k < kEach; ++k) sums[k] += x[k];
    }
    rotate_pairs<kEach, -1>(sums, e, table + static_cast<std::int64_t>(positions[t]) * s.R, s.R);
    if constexpr (N == 1) {
      dk_rope[first] = narrow<T>(sums[0]);
      dk_rope[first + 1] = narrow<T>(sums[1]);
    } else {
      store<kEach>(dk_rope + first, sums);
    }
  }
};

}  // namespace

void latent_heads_forward(const Launch& where, const LatentHeadsForward& a) {
  check_args(a);
  const LatentShape shape(a.heads, a.rope_table_SR);
  with_type(a.qkv.dtype, "latent heads: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    const bool vectors =
        shape.splits_by(kVec<T>) && aligned(a.q_TC, a.kv_TC, a.k_rope_TR, a.rope_table_SR, a.qkv);
    launch_flat<kVec<T>>(
        where, a.qkv.numel(), vectors, "latent_heads_forward",
        LatentForwardBody<T>{shape, at<T>(a.q_TC), at<T>(a.kv_TC), at<T>(a.k_rope_TR),
                             at<std::int32_t>(a.positions_T), at<float>(a.rope_table_SR), at<T>(a.qkv)});
  });
}

void latent_heads_backward(const Launch& where, const LatentHeadsBackward& a) {
  check_args(a);
  const LatentShape shape(a.heads, a.rope_table_SR);
  with_type(a.dqkv.dtype, "latent heads: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    const bool vectors =
        shape.splits_by(kVec<T>) && aligned(a.dqkv, a.rope_table_SR, a.dq_TC, a.dkv_TC, a.dk_rope_TR);
    launch_flat<kVec<T>>(where, a.dq_TC.numel() + a.dkv_TC.numel(), vectors, "latent_heads_backward",
                         LatentBackwardBody<T>{shape, at<T>(a.dqkv), at<std::int32_t>(a.positions_T),
                                               at<float>(a.rope_table_SR), at<T>(a.dq_TC), at<T>(a.dkv_TC)});
    const std::int64_t shared = a.dk_rope_TR.numel();
    launch_flat<kVec<T>>(where, vectors ? shared : shared / 2, vectors, "latent_heads_shared",
                         LatentSharedBody<T>{shape, at<T>(a.dqkv), at<std::int32_t>(a.positions_T),
                                             at<float>(a.rope_table_SR), at<T>(a.dk_rope_TR)});
  });
}

}  // namespace trainerd::kernels::cuda
