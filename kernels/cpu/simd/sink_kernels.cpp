#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

template <class T>
T* head_at(const HeadView& x, std::int64_t row, std::int64_t head) {
  return as<T>(x.data) + row * x.row_stride + head * x.head_size;
}

float sink_of(const Tensor& sinks_H, std::int64_t head) {
  float sink = 0;
  with_type(sinks_H.dtype, [&]<class T>(T) { sink = wide(at<T>(sinks_H)[head]); });
  return sink;
}

}  // namespace

void attention_sink_forward(const AttentionSinkForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = a.lse_HT.shape[1];
  with_type(a.out_THE.dtype, [&]<class T>(T) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < a.out_THE.heads; ++h) {
        float& lse = at<float>(a.lse_HT)[h * tokens + t];
        // e^(lse - lse') is 1 / (1 + e^(sink - lse)). A row without keys has lse -infinity and out 0.
        const float sink = sink_of(a.sinks_H, h), above = sink - lse,
                    ratio = __builtin_expf(above > 0 ? -above : above);
        const Vec kept = broadcast((above > 0 ? ratio : 1.0f) / (1.0f + ratio));
        T* out = head_at<T>(a.out_THE, t, h);
        for_each_vec(a.out_THE.head_size, [&](auto get, auto put) { put(out, get(out) * kept); });
        lse = (above > 0 ? sink : lse) + __builtin_log1pf(ratio);
      }
  });
}

float attention_sink_backward(const AttentionSinkBackward& a, std::int64_t head) {
  const float sink = sink_of(a.sinks_H, head);
  const float* lse = at<float>(a.lse_HT) + head * a.lse_HT.shape[1];
  double total = 0;
  with_type(a.out_THE.dtype, [&]<class T>(T) {
    for (std::int64_t t = 0; t < a.out_THE.rows; ++t) {
      const T *out = head_at<T>(a.out_THE, t, head), *dout = head_at<T>(a.dout_THE, t, head);
      Vec products = zero();
      for_each_vec(a.out_THE.head_size,
                   [&](auto get, auto) { products = fma(get(out), get(dout), products); });
      total -= static_cast<double>(__builtin_expf(sink - lse[t]) * sum(products));
    }
  });
  return static_cast<float>(total);
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
