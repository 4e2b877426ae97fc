#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

template <class T>
void norm_forward_rows(const AddNormForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t d = a.residual_TD.size(1);
  const float inverse_d = 1.0f / static_cast<float>(d);
  const T* weight = at<T>(a.weight_D);
  const T* bias = at<T>(a.bias_D);
  const Vec offset = broadcast(a.weight_offset);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = at<T>(a.residual_TD, t * d);
    Vec squares = zero(), sums = zero();
    if (a.delta_TD.defined()) {
      const T* delta = at<T>(a.delta_TD, t * d);
      T* out = at<T>(a.sum_TD, t * d);
      // The statistics use the sum as stored, which is what the backward reads.
      for_each_vec(d, [&](auto get, auto put) { put(out, get(x) + get(delta)); });
      x = out;
    }
    for_each_vec(d, [&](auto get, auto) {
      const Vec v = get(x);
      sums += v;
      squares = fma(v, v, squares);
    });
    float mean = 0.0f, variance = 0.0f;
    if (a.kind == NormKind::layer) {
      // A second pass over the cached row: subtracting two large sums would lose precision of the variance.
      mean = sum(sums) * inverse_d;
      Vec deviations = zero();
      for_each_vec(
          d,
          [&](auto get, auto) {
            const Vec v = get(x) - broadcast(mean);
            deviations = fma(v, v, deviations);
          },
          mean);
      variance = sum(deviations) * inverse_d;
      at<float>(a.mean_T)[t] = mean;
    } else {
      variance = sum(squares) * inverse_d;
    }
    const float rstd = 1.0f / __builtin_sqrtf(variance + a.eps);
    at<float>(a.rstd_T)[t] = rstd;
    T* y = at<T>(a.y_TD, t * d);
    const Vec shift = broadcast(mean), scale = broadcast(rstd);
    if (bias != nullptr)
      for_each_vec(d, [&](auto get, auto put) {
        put(y, fma((get(x) - shift) * scale, get(weight) + offset, get(bias)));
      });
    else
      for_each_vec(d, [&](auto get, auto put) { put(y, (get(x) - shift) * scale * (get(weight) + offset)); });
  }
}

/// With xh = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - xh mean(g xh)) + dsum. The RMS norm
/// has neither the mean nor the term mean(g) (Zhang and Sennrich, arXiv 1910.07467). dweight = sum of dy xh
/// over rows.
template <class T>
void norm_backward_rows(const AddNormBackward& a, std::int64_t begin, std::int64_t end, float* dweight,
                        float* dbias) {
  const std::int64_t d = a.sum_TD.size(1);
  const float inverse_d = 1.0f / static_cast<float>(d);
  const bool layer = a.kind == NormKind::layer;
  const T* weight = at<T>(a.weight_D);
  const Vec offset = broadcast(a.weight_offset);
  clear(dweight, d);
  if (dbias != nullptr) clear(dbias, d);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = at<T>(a.sum_TD, t * d);
    const T* dy = at<T>(a.dy_TD, t * d);
    const T* dsum = a.dsum_TD.defined() ? at<T>(a.dsum_TD, t * d) : nullptr;
    T* dx = at<T>(a.dx_TD, t * d);
    const Vec shift = broadcast(layer ? at<float>(a.mean_T)[t] : 0.0f);
    const Vec scale = broadcast(at<float>(a.rstd_T)[t]);
    Vec g_sum = zero(), gx_sum = zero();
    for_each_vec(d, [&](auto get, auto) {
      const Vec g = get(dy) * (get(weight) + offset);
      g_sum += g;
      gx_sum = fma(g, (get(x) - shift) * scale, gx_sum);
    });
    const Vec g_mean = broadcast(layer ? sum(g_sum) * inverse_d : 0.0f);
    const Vec gx_mean = broadcast(sum(gx_sum) * inverse_d);
    const auto body = [&](auto get, auto put, bool has_dsum) {
      const Vec out_gradient = get(dy);
      const Vec xh = (get(x) - shift) * scale;
      Vec r = fnma(xh, gx_mean, out_gradient * (get(weight) + offset) - g_mean) * scale;
      if (has_dsum) r += get(dsum);
      put(dweight, fma(out_gradient, xh, get(dweight)));
      if (dbias != nullptr) put(dbias, get(dbias) + out_gradient);
      put(dx, r);
    };
    if (dsum != nullptr) for_each_vec(d, [&](auto get, auto put) { body(get, put, true); });
    else for_each_vec(d, [&](auto get, auto put) { body(get, put, false); });
  }
}

}  // namespace

void add_norm_forward(const AddNormForward& a, std::int64_t begin, std::int64_t end) {
  with_type(a.residual_TD.dtype, [&](auto t) { norm_forward_rows<decltype(t)>(a, begin, end); });
}

void add_norm_backward(const AddNormBackward& a, std::int64_t begin, std::int64_t end, float* dweight,
                       float* dbias) {
  with_type(a.sum_TD.dtype, [&](auto t) { norm_backward_rows<decltype(t)>(a, begin, end, dweight, dbias); });
}

void sum_partials(const float* partial, std::int64_t rows, std::int64_t stride, std::int64_t n, DType dtype,
                  std::byte* out, WriteMode mode) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    T* to = as<T>(out);
    for_each_vec(n, [&](auto get, auto put) {
      Vec total = zero();
      for (std::int64_t r = 0; r < rows; ++r) total += get(partial + r * stride);
      if (mode == WriteMode::accumulate) total += get(to);
      put(to, total);
    });
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
