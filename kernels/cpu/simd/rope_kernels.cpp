#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

/// cos and sin of one position's angles, R/2 each; null means no rotation.
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

/// Calls `body(first, count, rotation)` for the rotated elements of a head, and then for the rest.
template <class Body>
void each_part(std::int64_t e, const Rotation& rotation, const Body& body) {
  if (rotation.cos == nullptr || rotation.width == e) return body(std::int64_t{0}, e, rotation);
  body(std::int64_t{0}, rotation.width, rotation);
  body(rotation.width, e - rotation.width, Rotation{});
}

template <class T>
float square_sum(const T* x, std::int64_t e) {
  Vec squares = zero();
  for_each_vec(e, [&](auto get, auto) {
    const Vec v = get(x);
    squares = fma(v, v, squares);
  });
  return sum(squares);
}

float rstd_of(float squares, std::int64_t e, float eps) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(e) + eps);
}

/// A part of a head, either rotated or not: y = rotate(x rstd (offset + weight)). `weight` null: no norm. y
/// may be x.
template <class T>
void part_forward(const T* x, T* y, std::int64_t e, const T* weight, float weight_offset, float rstd,
                  Rotation rotation) {
  const Vec offset = broadcast(weight_offset);
  const Vec scale = broadcast(rstd);
  const auto normed = [&](auto get, const T* from, const T* w) {
    return w == nullptr ? get(from) : get(from) * scale * (get(w) + offset);
  };
  if (rotation.cos == nullptr) {
    for_each_vec(e, [&](auto get, auto put) { put(y, normed(get, x, weight)); });
    return;
  }
  const std::int64_t half = e / 2;
  const T* weight_high = weight == nullptr ? nullptr : weight + half;
  for_each_vec(half, [&](auto get, auto put) {
    const Vec low = normed(get, x, weight), high = normed(get, x + half, weight_high);
    const Vec c = get(rotation.cos), s = get(rotation.sin);
    put(y, fnma(high, s, low * c));
    put(y + half, fma(high, c, low * s));
  });
}

template <class T>
void head_forward(const T* x, T* y, std::int64_t e, const T* weight, float weight_offset, float rstd,
                  Rotation rotation) {
  each_part(e, rotation, [&](std::int64_t first, std::int64_t count, const Rotation& of_part) {
    part_forward(x + first, y + first, count, weight == nullptr ? weight : weight + first, weight_offset,
                 rstd, of_part);
  });
}

/// g = dy rotated back, for both halves. Without a rotation all E elements count as the lower half.
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

/// Sum of g w x over a part of a head, where w is the weight plus its offset.
template <class T>
float part_products(const T* x, const T* dy, std::int64_t e, const T* weight, float weight_offset,
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

template <class T>
float head_products(const T* x, const T* dy, std::int64_t e, const T* weight, float weight_offset,
                    Rotation rotation) {
  float total = 0;
  each_part(e, rotation, [&](std::int64_t first, std::int64_t count, const Rotation& of_part) {
    total += part_products(x + first, dy + first, count, weight + first, weight_offset, of_part);
  });
  return total;
}

/// One head without a norm, in place. Unrotated elements do not change.
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

/// Statistics that the norm's backward needs.
struct NormSums {
  float rstd = 0;
  float mean = 0;  ///< rstd^2 times the mean of g w x
};

/// A part of a head, in place: replaces dy by dx = rstd (g w - x mean), and adds g x rstd to dweight.
template <class T>
void part_backward(const T* x, T* dy, std::int64_t e, const T* weight, float weight_offset,
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

template <class T>
void head_backward(const T* x, T* dy, std::int64_t e, const T* weight, float weight_offset,
                   const NormSums& sums, Rotation rotation, float* dweight) {
  each_part(e, rotation, [&](std::int64_t first, std::int64_t count, const Rotation& of_part) {
    part_backward(x + first, dy + first, count, weight + first, weight_offset, sums, of_part,
                  dweight + first);
  });
}

/// The query heads or the key heads, which share one weight tensor.
struct HeadRun {
  std::int64_t first, count;
  std::int64_t column;  ///< index in the sums over ranks
};

template <class Args>
HeadRun queries_of(const Args& a) {
  return {0, a.heads.heads, 0};
}
template <class Args>
HeadRun keys_of(const Args& a) {
  return {a.heads.heads, a.heads.kv_heads, 1};
}

/// Sum of the products of all heads of a run.
template <class T>
float run_products(std::int64_t e, HeadRun run, const T* x, const T* dy, const T* weight, float weight_offset,
                   Rotation rotation) {
  float total = 0;
  for (std::int64_t h = 0; h < run.count; ++h) {
    const std::int64_t at = (run.first + h) * e;
    total += head_products<T>(x + at, dy + at, e, weight + h * e, weight_offset, rotation);
  }
  return total;
}

template <class T>
void forward_run(const QkNormRopeForward& a, std::int64_t t, HeadRun run, const T* x, T* y, const T* weight,
                 Rotation rotation) {
  const std::int64_t e = a.heads.head_size;
  const bool all = a.span == QkNormSpan::all;
  float rstd = 1.0f;
  if (weight != nullptr && all) {
    const std::int64_t n = run.count * e;
    const float squares = a.squares_T2.defined() ? at<float>(a.squares_T2)[2 * t + run.column]
                                                 : square_sum(x + run.first * e, n);
    rstd = rstd_of(squares, n * a.ranks, a.eps);
  }
  for (std::int64_t h = 0; h < run.count; ++h) {
    const std::int64_t place = (run.first + h) * e;
    if (weight != nullptr && !all) rstd = rstd_of(square_sum(x + place, e), e, a.eps);
    head_forward(x + place, y + place, e, weight == nullptr || !all ? weight : weight + h * e,
                 a.weight_offset, rstd, rotation);
  }
}

template <class T>
void forward_rows(const QkNormRopeForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  const HeadRun queries = queries_of(a), keys = keys_of(a);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = at<T>(a.qkv_in, t * columns);
    T* y = at<T>(a.qkv_out, t * columns);
    const Rotation rotation = rotation_of(a, t);
    forward_run(a, t, queries, x, y, at<T>(a.q_weight_E), rotation);
    forward_run(a, t, keys, x, y, at<T>(a.k_weight_E), rotation);
    const std::int64_t values = (a.heads.heads + a.heads.kv_heads) * e;
    if (x != y)
      __builtin_memcpy(y + values, x + values, static_cast<std::size_t>(columns - values) * sizeof(T));
  }
}

template <class T>
void backward_run(const QkNormRopeBackward& a, std::int64_t t, HeadRun run, const T* x, T* dy,
                  const T* weight, Rotation rotation, float* dweight) {
  const std::int64_t e = a.heads.head_size;
  const auto sums = [&](float squares, float products, std::int64_t n) {
    const float rstd = rstd_of(squares, n, a.eps);
    return NormSums{rstd, products / static_cast<float>(n) * rstd * rstd};
  };
  const auto write = [&](std::int64_t h, const T* of_head, const NormSums& s, float* to) {
    const std::int64_t place = (run.first + h) * e;
    head_backward(x + place, dy + place, e, of_head, a.weight_offset, s, rotation, to);
  };
  if (a.span == QkNormSpan::head) {
    for (std::int64_t h = 0; h < run.count; ++h) {
      const HeadRun head{run.first + h, 1, run.column};
      const float products = run_products(e, head, x, dy, weight, a.weight_offset, rotation);
      write(h, weight, sums(square_sum(x + head.first * e, e), products, e), dweight);
    }
    return;
  }
  const bool of_ranks = a.squares_T2.defined();
  const std::int64_t in_sums = 2 * t + run.column;
  const float products = of_ranks ? at<float>(a.products_T2)[in_sums]
                                  : run_products(e, run, x, dy, weight, a.weight_offset, rotation),
              squares =
                  of_ranks ? at<float>(a.squares_T2)[in_sums] : square_sum(x + run.first * e, run.count * e);
  const NormSums s = sums(squares, products, run.count * e * a.ranks);
  for (std::int64_t h = 0; h < run.count; ++h) write(h, weight + h * e, s, dweight + h * e);
}

template <class T>
void backward_rows(const QkNormRopeBackward& a, std::int64_t begin, std::int64_t end, float* dq, float* dk) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  const HeadRun queries = queries_of(a), keys = keys_of(a);
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
    backward_run(a, t, queries, x, dy, at<T>(a.q_weight_E), rotation, dq);
    backward_run(a, t, keys, x, dy, at<T>(a.k_weight_E), rotation, dk);
  }
}

template <class T>
void sums_rows(const QkNormSums& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t e = a.heads.head_size, columns = a.heads.columns();
  for (std::int64_t t = begin; t < end; ++t)
    for (const HeadRun run : {queries_of(a), keys_of(a)}) {
      const T* x = at<T>(a.qkv_in, t * columns);
      float& sum = at<float>(a.sums_T2)[2 * t + run.column];
      if (a.dqkv.defined())
        sum = run_products<T>(e, run, x, at<T>(a.dqkv, t * columns),
                              at<T>(run.column == 0 ? a.q_weight_E : a.k_weight_E), a.weight_offset,
                              rotation_of(a, t));
      else sum = square_sum(x + run.first * e, run.count * e);
    }
}

}  // namespace

void qk_norm_sums(const QkNormSums& a, std::int64_t begin, std::int64_t end) {
  with_type(a.qkv_in.dtype, [&](auto t) { sums_rows<decltype(t)>(a, begin, end); });
}

void qk_norm_rope_forward(const QkNormRopeForward& a, std::int64_t begin, std::int64_t end) {
  with_type(a.qkv_in.dtype, [&](auto t) { forward_rows<decltype(t)>(a, begin, end); });
}

void qk_norm_rope_backward(const QkNormRopeBackward& a, std::int64_t begin, std::int64_t end, float* dq,
                           float* dk) {
  with_type(a.dqkv.dtype, [&](auto t) { backward_rows<decltype(t)>(a, begin, end, dq, dk); });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
