#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {

void combine_rows(const CombineRows& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t d = a.to_TD.size(1), copies = a.row_TK.size(1);
  with_type(a.to_TD.dtype, [&]<class T>(T) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int32_t* rows = at<std::int32_t>(a.row_TK, t * copies);
      const float* weights = a.weight_TK.defined() ? at<float>(a.weight_TK, t * copies) : nullptr;
      T* to = at<T>(a.to_TD, t * d);
      for_each_vec(d, [&](auto get, auto put) {
        Vec total = zero();
        for (std::int64_t k = 0; k < copies; ++k) {
          if (rows[k] < 0) continue;
          const Vec x = get(at<T>(a.from_RD, rows[k] * d));
          total = weights == nullptr ? total + x : fma(broadcast(weights[k]), x, total);
        }
        put(to, total);
      });
    }
  });
}

void weigh_rows(const WeighRows& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t f = a.act_RF.size(1);
  with_type(a.act_RF.dtype, [&]<class T>(T) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int32_t source = at<std::int32_t>(a.source_R)[r];
      if (source < 0) continue;
      const Vec weight = broadcast(at<float>(a.weight_TK)[source]);
      T *dact = at<T>(a.dact_RF, r * f), *act = at<T>(a.act_RF, r * f);
      Vec products = zero();
      for_each_vec(f, [&](auto get, auto put) {
        const Vec d = get(dact), x = get(act);
        products = fma(d, x, products);
        put(dact, d * weight);
        put(act, x * weight);
      });
      at<float>(a.dweight_TK)[source] = sum(products);
    }
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
