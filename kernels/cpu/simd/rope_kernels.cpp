#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

/// cos and sin of one position's angles, E/2 each; null pointers mean no rotation.
struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

template <class Args>
Rotation rotation_of(const Args& a, std::int64_t t) {
  if (!a.rope_table_SE.defined()) return {};
  const std::int64_t e = a.heads.head_size;
  const float* row = at<float>(a.rope_table_SE, at<std::int32_t>(a.positions_T)[t] * e);
  return {row, row + e / 2};
}

template <class T>
float rms_rstd(const T* x, std::int64_t e, float eps) {
  Vec squares = zero();
  for_each_vec(e, [&](auto get, auto) {
    const Vec v = get(x);
    squares = fma(v, v, squares);
  });
  return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(e) + eps);
}

/// One head: y = rotate(x rstd weight). `weight` null: no norm. y may be x.
template <class T, class W>
void head_forward(const T* x, T* y, std::int64_t e, const W* weight, float eps, Rotation rotation) {
  const Vec scale = broadcast(weight == nullptr ? 1.0f : rms_rstd(x, e, eps));
  const auto normed = [&](auto get, const T* from, const W* w) {
    return w == nullptr ? get(from) : get(from) * scale * get(w);
  };
  if (rotation.cos == nullptr) {
    for_each_vec(e, [&](auto get, auto put) { put(y, normed(get, x, weight)); });
    return;
  }
  const std::int64_t half = e / 2;
  const W* weight_high = weight == nullptr ? nullptr : weight + half;
  for_each_vec(half, [&](auto get, auto put) {
    const Vec low = normed(get, x, weight), high = normed(get, x + half, weight_high);
    const Vec c = get(rotation.cos), s = get(rotation.sin);
    put(y, fnma(high, s, low * c));
    put(y + half, fma(high, c, low * s));
  });
}

/// One head, in place: dy becomes dx. g = rotate back dy; with a norm dx = rstd (g w - x rstd^2 mean(g w x))
/// and dweight += g x rstd.
template <class T, class W>
void head_backward(const T* x, T* dy, std::int64_t e, const W* weight, float eps, Rotation rotation,
                   float* dweight) {
  const bool rotates = rotation.cos != nullptr;
  // Without a rotation one run over all of E does; with one, the two halves are walked together.
  const std::int64_t half = rotates ? e / 2 : e;
  const auto gradient = [&](auto get, Vec& low, Vec& high) {
    low = get(dy);
    high = zero();
    if (!rotates) return;
    const Vec h = get(dy + half), c = get(rotation.cos), s = get(rotation.sin);
    high = fnma(low, s, h * c);
    low = fma(h, s, low * c);
  };
  if (weight == nullptr) {
    if (!rotates) return;
    for_each_vec(half, [&](auto get, auto put) {
      Vec low, high;
      gradient(get, low, high);
      put(dy, low);
      put(dy + half, high);
    });
    return;
  }
  const float rstd = rms_rstd(x, e, eps);
  Vec products = zero();
  for_each_vec(half, [&](auto get, auto) {
    Vec low, high;
    gradient(get, low, high);
    products = fma(low * get(weight), get(x), products);
    if (rotates) products = fma(high * get(weight + half), get(x + half), products);
  });
  const Vec scale = broadcast(rstd);
  const Vec mean = broadcast(sum(products) / static_cast<float>(e) * rstd * rstd);
  for_each_vec(half, [&](auto get, auto put) {
    Vec low, high;
    gradient(get, low, high);
    const auto write = [&](Vec g, std::int64_t offset) {
      const Vec v = get(x + offset);
      put(dweight + offset, fma(g, v * scale, get(dweight + offset)));
      put(dy + offset, fnma(v, mean, g * get(weight + offset)) * scale);
    };
    write(low, 0);
    if (rotates) write(high, half);
  });
}

template <class T, class W>
void forward_rows(const QkNormRopeForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = at<T>(a.qkv_in, t * columns);
    T* y = at<T>(a.qkv_out, t * columns);
    const Rotation rotation = rotation_of(a, t);
    for (std::int64_t h = 0; h < a.heads.heads + a.heads.kv_heads; ++h)
      head_forward(x + h * e, y + h * e, e, at<W>(h < a.heads.heads ? a.q_weight_E : a.k_weight_E), a.eps,
                   rotation);
    const std::int64_t values = (a.heads.heads + a.heads.kv_heads) * e;
    if (x != y)
      __builtin_memcpy(y + values, x + values, static_cast<std::size_t>(columns - values) * sizeof(T));
  }
}

template <class T, class W>
void backward_rows(const QkNormRopeBackward& a, std::int64_t begin, std::int64_t end, float* dq, float* dk) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  if (dq != nullptr) {
    clear(dq, e);
    clear(dk, e);
  }
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = dq == nullptr ? nullptr : at<T>(a.qkv_in, t * columns);
    T* dy = at<T>(a.dqkv, t * columns);
    const Rotation rotation = rotation_of(a, t);
    for (std::int64_t h = 0; h < a.heads.heads + a.heads.kv_heads; ++h) {
      const bool query = h < a.heads.heads;
      head_backward(x == nullptr ? nullptr : x + h * e, dy + h * e, e,
                    at<W>(query ? a.q_weight_E : a.k_weight_E), a.eps, rotation, query ? dq : dk);
    }
  }
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeForward& a, std::int64_t begin, std::int64_t end) {
  with_type(a.qkv_in.dtype, [&](auto t) {
    with_type(a.q_weight_E.dtype, [&](auto w) { forward_rows<decltype(t), decltype(w)>(a, begin, end); });
  });
}

void qk_norm_rope_backward(const QkNormRopeBackward& a, std::int64_t begin, std::int64_t end, float* dq,
                           float* dk) {
  with_type(a.dqkv.dtype, [&](auto t) {
    with_type(a.q_weight_E.dtype,
              [&](auto w) { backward_rows<decltype(t), decltype(w)>(a, begin, end, dq, dk); });
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
