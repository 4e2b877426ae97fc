#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

template <class T>
void copy_elements(const T* from, T* to, std::int64_t n) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

/// cos and sin of a token's angles, R/2 each.
struct Angles {
  const float *cos, *sin;
  std::int64_t pairs;
};
template <class Args>
Angles angles_of(const Args& a, std::int64_t t) {
  const std::int64_t R = a.rope_table_SR.size(1);
  const float* row = at<float>(a.rope_table_SR, at<std::int32_t>(a.positions_T)[t] * R);
  return {row, row + R / 2, R / 2};
}

template <class T>
void rotate_pairs(const T* x, T* y, const Angles& a) {
  for (std::int64_t i = 0; i < a.pairs; ++i) {
    const float first = wide(x[2 * i]), second = wide(x[2 * i + 1]);
    put_element(y + 2 * i, first * a.cos[i] - second * a.sin[i]);
    put_element(y + 2 * i + 1, second * a.cos[i] + first * a.sin[i]);
  }
}

/// y = the sum of the R elements of `count` heads, `stride` elements apart, rotated back.
template <class T>
void rotate_sum_back(const T* x, std::int64_t stride, std::int64_t count, T* y, const Angles& a) {
  for (std::int64_t i = 0; i < a.pairs; ++i) {
    float first = 0, second = 0;
    for (std::int64_t h = 0; h < count; ++h) {
      first += wide(x[h * stride + 2 * i]);
      second += wide(x[h * stride + 2 * i + 1]);
    }
    put_element(y + 2 * i, first * a.cos[i] + second * a.sin[i]);
    put_element(y + 2 * i + 1, second * a.cos[i] - first * a.sin[i]);
  }
}

}  // namespace

void latent_heads_forward(const LatentHeadsForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t E = a.heads.head_size, V = a.heads.values_size(), H = a.heads.heads,
                     R = a.rope_table_SR.size(1), own = E - R;
  with_type(a.qkv.dtype, [&]<class T>(T) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Angles angles = angles_of(a, t);
      const T *q = at<T>(a.q_TC, t * H * E), *kv = at<T>(a.kv_TC, t * H * (own + V));
      T *queries = at<T>(a.qkv, t * H * (2 * E + V)), *keys = queries + H * E, *values = keys + H * E;
      rotate_pairs(at<T>(a.k_rope_TR, t * R), keys + own, angles);
      for (std::int64_t h = 0; h < H; ++h) {
        copy_elements(q + h * E, queries + h * E, own);
        rotate_pairs(q + h * E + own, queries + h * E + own, angles);
        copy_elements(kv + h * (own + V), keys + h * E, own);
        if (h > 0) copy_elements(keys + own, keys + h * E + own, R);
        copy_elements(kv + h * (own + V) + own, values + h * V, V);
      }
    }
  });
}

void latent_heads_backward(const LatentHeadsBackward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t E = a.heads.head_size, V = a.heads.values_size(), H = a.heads.heads,
                     R = a.rope_table_SR.size(1), own = E - R;
  with_type(a.dqkv.dtype, [&]<class T>(T) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Angles angles = angles_of(a, t);
      const T *queries = at<T>(a.dqkv, t * H * (2 * E + V)), *keys = queries + H * E, *values = keys + H * E;
      T *q = at<T>(a.dq_TC, t * H * E), *kv = at<T>(a.dkv_TC, t * H * (own + V));
      rotate_sum_back(keys + own, E, H, at<T>(a.dk_rope_TR, t * R), angles);
      for (std::int64_t h = 0; h < H; ++h) {
        copy_elements(queries + h * E, q + h * E, own);
        rotate_sum_back(queries + h * E + own, E, 1, q + h * E + own, angles);
        copy_elements(keys + h * E, kv + h * (own + V), own);
        copy_elements(values + h * V, kv + h * (own + V) + own, V);
      }
    }
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
