#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

/// cos and sin of one position's angles, R/2 each; null pointers mean no rotation.
struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t width = 0;  ///< R
};

template <class Args>
Rotation rotation_of(const Args& a, std::int64_t t) {
  if (!a.rope_table_SR.defined()) return {};
  const std::int64_t r = a.rope_table_SR.size(1);
  const float* row = at<float>(a.rope_table_SR, at<std::int32_t>(a.positions_T)[t] * r);
  return {row, row + r / 2, r};
}

/// Calls `body(first, count, rotation)` for the elements of a head that are rotated, and for the rest.
template <class Body>
void each_part(std::int64_t e, const Rotation& rotation, const Body& body) {
  if (rotation.cos == nullptr || rotation.width == e) return body(std::int64_t{0}, e, rotation);
  body(std::int64_t{0}, rotation.width, rotation);
  body(rotation.width, e - rotation.width, Rotation{});
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

/// A part of a head, all rotated or none: y = rotate(x rstd (offset + weight)). `weight` null: no norm. y may
/// be x.
template <class T, class W>
void part_forward(const T* x, T* y, std::int64_t e, const W* weight, float weight_offset, float rstd,
                  Rotation rotation) {
  const Vec offset = broadcast(weight_offset);
  const Vec scale = broadcast(rstd);
  const auto normed = [&](auto get, const T* from, const W* w) {
    return w == nullptr ? get(from) : get(from) * scale * (get(w) + offset);
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

template <class T, class W>
void head_forward(const T* x, T* y, std::int64_t e, const W* weight, float weight_offset, float rstd,
                  Rotation rotation) {
  each_part(e, rotation, [&](std::int64_t first, std::int64_t count, const Rotation& of_part) {
    part_forward(x + first, y + first, count, weight == nullptr ? weight : weight + first, weight_offset,
                 rstd, of_part);
  });
}

/// g = rotate back dy, of both halves; without a rotation one run over all of E does, as the lower.
template <class T>
struct HeadGradient {
  const T* dy;
  std::int64_t half;
  Rotation rotation;

  bool rotates() const { return rotation.cos != nullptr; }
  template <class Get>
  void at(const Get& get, Vec& low, Vec& high) const {
    low = get(dy);
    high = zero();
    if (!rotates()) return;
    const Vec h = get(dy + half), c = get(rotation.cos), s = get(rotation.sin);
    high = fnma(low, s, h * c);
    low = fma(h, s, low * c);
  }
};
template <class T>
HeadGradient<T> head_gradient(const T* dy, std::int64_t e, Rotation rotation) {
  return {dy, rotation.cos != nullptr ? e / 2 : e, rotation};
}

/// Sum over a part of a head of g w x, where w is the weight with its offset.
template <class T, class W>
float part_products(const T* x, const T* dy, std::int64_t e, const W* weight, float weight_offset,
                    Rotation rotation) {
  const HeadGradient<T> gradient = head_gradient(dy, e, rotation);
  const Vec offset = broadcast(weight_offset);
  const std::int64_t half = gradient.half;
  Vec products = zero();
  for_each_vec(half, [&](auto get, auto) {
    Vec low, high;
    gradient.at(get, low, high);
    products = fma(low * (get(weight) + offset), get(x), products);
    if (gradient.rotates()) products = fma(high * (get(weight + half) + offset), get(x + half), products);
  });
  return sum(products);
}

template <class T, class W>
float head_products(const T* x, const T* dy, std::int64_t e, const W* weight, float weight_offset,
                    Rotation rotation) {
  float total = 0;
  each_part(e, rotation, [&](std::int64_t first, std::int64_t count, const Rotation& of_part) {
    total += part_products(x + first, dy + first, count, weight + first, weight_offset, of_part);
  });
  return total;
}

/// One head without a norm, in place: what is not rotated stays.
template <class T>
void rotate_back(T* dy, Rotation rotation) {
  const HeadGradient<T> gradient = head_gradient(dy, rotation.width, rotation);
  if (!gradient.rotates()) return;
  for_each_vec(gradient.half, [&](auto get, auto put) {
    Vec low, high;
    gradient.at(get, low, high);
    put(dy, low);
    put(dy + gradient.half, high);
  });
}

/// What a norm's backward knows of what it goes over.
struct NormSums {
  float rstd = 0;
  float mean = 0;  ///< rstd^2 times the mean of g w x
};

/// A part of a head, in place: dy becomes dx = rstd (g w - x mean), and dweight += g x rstd.
template <class T, class W>
void part_backward(const T* x, T* dy, std::int64_t e, const W* weight, float weight_offset,
                   const NormSums& sums, Rotation rotation, float* dweight) {
  const HeadGradient<T> gradient = head_gradient<T>(dy, e, rotation);
  const Vec offset = broadcast(weight_offset), scale = broadcast(sums.rstd), mean = broadcast(sums.mean);
  for_each_vec(gradient.half, [&](auto get, auto put) {
    Vec low, high;
    gradient.at(get, low, high);
    const auto write = [&](Vec g, std::int64_t at) {
      const Vec v = get(x + at);
      put(dweight + at, fma(g, v * scale, get(dweight + at)));
      put(dy + at, fnma(v, mean, g * (get(weight + at) + offset)) * scale);
    };
    write(low, 0);
    if (gradient.rotates()) write(high, gradient.half);
  });
}

template <class T, class W>
void head_backward(const T* x, T* dy, std::int64_t e, const W* weight, float weight_offset,
                   const NormSums& sums, Rotation rotation, float* dweight) {
  each_part(e, rotation, [&](std::int64_t first, std::int64_t count, const Rotation& of_part) {
    part_backward(x + first, dy + first, count, weight + first, weight_offset, sums, of_part,
                  dweight + first);
  });
}

/// Query heads, or key heads: those that one weight is for.
struct HeadRun {
  std::int64_t first, count;
};

template <class T, class W>
void forward_run(const QkNormRopeForward& a, HeadRun run, const T* x, T* y, const W* weight,
                 Rotation rotation) {
  const std::int64_t e = a.heads.head_size;
  const bool all = a.span == QkNormSpan::all;
  float rstd = weight != nullptr && all ? rms_rstd(x + run.first * e, run.count * e, a.eps) : 1.0f;
  for (std::int64_t h = 0; h < run.count; ++h) {
    const std::int64_t at = (run.first + h) * e;
    if (weight != nullptr && !all) rstd = rms_rstd(x + at, e, a.eps);
    head_forward(x + at, y + at, e, weight == nullptr || !all ? weight : weight + h * e, a.weight_offset,
                 rstd, rotation);
  }
}

template <class T, class W>
void forward_rows(const QkNormRopeForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  const HeadRun queries{0, a.heads.heads}, keys{a.heads.heads, a.heads.kv_heads};
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = at<T>(a.qkv_in, t * columns);
    T* y = at<T>(a.qkv_out, t * columns);
    const Rotation rotation = rotation_of(a, t);
    forward_run(a, queries, x, y, at<W>(a.q_weight_E), rotation);
    forward_run(a, keys, x, y, at<W>(a.k_weight_E), rotation);
    const std::int64_t values = (a.heads.heads + a.heads.kv_heads) * e;
    if (x != y)
      __builtin_memcpy(y + values, x + values, static_cast<std::size_t>(columns - values) * sizeof(T));
  }
}

template <class T, class W>
void backward_run(const QkNormRopeBackward& a, HeadRun run, const T* x, T* dy, const W* weight,
                  Rotation rotation, float* dweight) {
  const std::int64_t e = a.heads.head_size;
  const auto products = [&](std::int64_t h, const W* of_head) {
    const std::int64_t at = (run.first + h) * e;
    return head_products<T, W>(x + at, dy + at, e, of_head, a.weight_offset, rotation);
  };
  const auto sums = [&](std::int64_t first_head, float total, std::int64_t n) {
    const float rstd = rms_rstd(x + first_head * e, n, a.eps);
    return NormSums{rstd, total / static_cast<float>(n) * rstd * rstd};
  };
  const auto write = [&](std::int64_t h, const W* of_head, const NormSums& s, float* to) {
    const std::int64_t at = (run.first + h) * e;
    head_backward(x + at, dy + at, e, of_head, a.weight_offset, s, rotation, to);
  };
  if (a.span == QkNormSpan::head) {
    for (std::int64_t h = 0; h < run.count; ++h)
      write(h, weight, sums(run.first + h, products(h, weight), e), dweight);
    return;
  }
  float total = 0;
  for (std::int64_t h = 0; h < run.count; ++h) total += products(h, weight + h * e);
  const NormSums s = sums(run.first, total, run.count * e);
  for (std::int64_t h = 0; h < run.count; ++h) write(h, weight + h * e, s, dweight + h * e);
}

template <class T, class W>
void backward_rows(const QkNormRopeBackward& a, std::int64_t begin, std::int64_t end, float* dq, float* dk) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  const HeadRun queries{0, a.heads.heads}, keys{a.heads.heads, a.heads.kv_heads};
  if (dq != nullptr) {
    clear(dq, norm_elements(a.span, queries.count, e));
    clear(dk, norm_elements(a.span, keys.count, e));
  }
  for (std::int64_t t = begin; t < end; ++t) {
    T* dy = at<T>(a.dqkv, t * columns);
    const Rotation rotation = rotation_of(a, t);
    if (dq == nullptr) {
      for (std::int64_t h = 0; h < queries.count + keys.count; ++h) rotate_back(dy + h * e, rotation);
      continue;
    }
    const T* x = at<T>(a.qkv_in, t * columns);
    backward_run(a, queries, x, dy, at<W>(a.q_weight_E), rotation, dq);
    backward_run(a, keys, x, dy, at<W>(a.k_weight_E), rotation, dk);
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
