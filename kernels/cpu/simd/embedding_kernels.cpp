#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

template <class T>
void forward_rows(const EmbeddingForward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t d = a.table_VD.size(1), held = a.table_VD.size(0);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t row = at<std::int32_t>(a.tokens_T)[t] - a.first_row;
    const T* token = row >= 0 && row < held ? at<T>(a.table_VD, row * d) : nullptr;
    const T* place = nullptr;
    if (a.positions_table_SD.defined())
      place = at<T>(a.positions_table_SD, at<std::int32_t>(a.positions_T)[t] * d);
    T* out = at<T>(a.out_TD, t * d);
    if (token != nullptr && place != nullptr)
      for_each_vec(d, [&](auto get, auto put) { put(out, get(token) + get(place)); });
    else if (token != nullptr || place != nullptr)
      for_each_vec(d,
                   [&, from = token != nullptr ? token : place](auto get, auto put) { put(out, get(from)); });
    else clear(out, d);
  }
}

/// Sums kLanes * N columns of one table row.
template <int N, class T, class G>
void sum_columns(const T* dout, std::int64_t d, const std::int32_t* order, std::int64_t count, G* to,
                 bool accumulate) {
  Vec total[N];
  for (int i = 0; i < N; ++i) total[i] = zero();
  for (std::int64_t k = 0; k < count; ++k) {
    const T* from = dout + order[k] * d;
    for (int i = 0; i < N; ++i) total[i] += load(from + i * kLanes);
  }
  for (int i = 0; i < N; ++i) {
    G* p = to + i * kLanes;
    store(p, accumulate ? total[i] + load(p) : total[i]);
  }
}

template <class T, class G>
void backward_row(const EmbeddingBackward& a, std::int64_t row, const std::int32_t* order,
                  std::int64_t count) {
  const std::int64_t d = a.dtable_VD.size(1);
  const bool accumulate = a.mode == WriteMode::accumulate;
  const T* dout = at<T>(a.dout_TD);
  G* to = at<G>(a.dtable_VD, row * d);
  if (count == 0) {
    if (!accumulate) clear(to, d);
    return;
  }
  constexpr int kWide = 8;
  std::int64_t c = 0;
  for (; c + kWide * kLanes <= d; c += kWide * kLanes)
    sum_columns<kWide>(dout + c, d, order, count, to + c, accumulate);
  for (; c + kLanes <= d; c += kLanes) sum_columns<1>(dout + c, d, order, count, to + c, accumulate);
  if (const std::int64_t rest = d - c; rest > 0) {
    Vec total = zero();
    for (std::int64_t k = 0; k < count; ++k) total += load_tail(dout + order[k] * d + c, rest);
    if (accumulate) total += load_tail(to + c, rest);
    store_tail(to + c, total, rest);
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, std::int64_t begin, std::int64_t end) {
  with_type(a.out_TD.dtype, [&](auto t) { forward_rows<decltype(t)>(a, begin, end); });
}

void embedding_row(const EmbeddingBackward& a, std::int64_t row, const std::int32_t* order,
                   std::int64_t count) {
  with_types(a.dout_TD.dtype, a.dtable_VD.dtype,
             [&](auto t, auto g) { backward_row<decltype(t), decltype(g)>(a, row, order, count); });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
