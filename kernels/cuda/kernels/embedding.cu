// Embedding. Floor = bytes / memory bandwidth. Forward: T D elements read in the table's dtype and T D
// written in the output's (with positions T D more read). Backward: T D of dout read and, for each row that
// occurs, D of the gradient read and written, or all V D written once if assigned. token_sort.cu does the
// sort before it.

#include <cstdint>
#include <limits>

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/token_sort.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kEmbeddingThreads = 128;

template <class T, int N>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_forward_kernel(const std::int32_t* tokens, const T* table, std::int64_t held,
                             std::int64_t first_row, const std::int32_t* positions, const T* positions_table,
                             T* out, std::int64_t d) {
  const std::int64_t t = blockIdx.x, row = tokens[t] - first_row;
  const T* token = row >= 0 && row < held ? table + row * d : nullptr;
  const T* place = positions_table != nullptr ? positions_table + positions[t] * d : nullptr;
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * N; column < d;
       column += kEmbeddingThreads * N) {
    float x[N] = {}, y[N];
    if (token != nullptr) load<N>(token + column, x);
    if (place != nullptr) {
      load<N>(place + column, y);
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] += y[k];
    }
    store<N>(out + t * d + column, x);
  }
}

struct CheckIdsBody {
  const std::int32_t* ids;
  std::uint32_t vocab;  ///< as unsigned, a negative id is larger than any vocabulary
  float* flag;
  float value;
  template <int N>
  __device__ void at(std::int64_t i) const {
    bool outside = false;
#pragma unroll
    for (int k = 0; k < N; ++k) outside = outside || static_cast<std::uint32_t>(ids[i + k]) >= vocab;
    if (outside) *flag = value;  // all threads write the same value
  }
};

/// Block x is the position of a token in the sorted order. The block of each row's first token sums all
/// tokens of the row, in order. Block y is a run of columns.
template <class T, class G, int N>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_backward_kernel(const std::int32_t* rows, const std::int32_t* order, std::int64_t tokens,
                              std::int64_t held, const T* dout, G* dtable, std::int64_t d, bool accumulate) {
  const std::int64_t begin = blockIdx.x;
  const std::int32_t row = rows[begin];
  if (row >= held || (begin > 0 && rows[begin - 1] == row)) return;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kEmbeddingThreads + threadIdx.x) * N;
  if (column >= d) return;
  // Finds the last position of the row: strides double while they stay in the row, then halve. This is one
  // load if the row has a single token.
  std::int64_t last = begin, stride = 1;
  while (last + stride < tokens && rows[last + stride] == row) {
    last += stride;
    stride *= 2;
  }
  for (; stride > 0; stride /= 2)
    if (last + stride < tokens && rows[last + stride] == row) last += stride;

  float total[N] = {};
#pragma unroll 4
  for (std::int64_t i = begin; i <= last; ++i) {
    float x[N];
    load<N>(dout + order[i] * d + column, x);
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] += x[k];
  }
  G* to = dtable + row * d + column;
  if (accumulate) {
    float before[N];
    load<N>(to, before);
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] += before[k];
  }
  store<N>(to, total);
}

}  // namespace

void check_ids(const Launch& where, const CheckIds& a) {
  base::check(a.flag.dtype == DType::f32 && a.flag.numel() == 1, "check ids: one flag in fp32");
  base::check(a.vocab >= 0 && a.vocab <= std::numeric_limits<std::int32_t>::max(),
              "check ids: a vocabulary of 31 bits");
  for (const Tensor* ids : {&a.tokens_T, &a.targets_T})
    launch_flat<1>(where, ids->numel(), false, "check_ids",
                   CheckIdsBody{ids->as<std::int32_t>(), static_cast<std::uint32_t>(a.vocab),
                                a.flag.as<float>(), a.flag_value});
}

void embedding_forward(const Launch& where, const EmbeddingForward& a) {
  const std::int64_t tokens = a.out_TD.size(0), d = a.out_TD.size(1);
  const bool placed = a.positions_table_SD.defined();
  base::check(a.tokens_T.numel() == tokens && a.table_VD.size(1) == d,
              "embedding: shapes of tokens, table and output");
  base::check(!placed || (a.positions_table_SD.dtype == a.table_VD.dtype &&
                          a.positions_table_SD.size(1) == d && a.positions_T.numel() == tokens),
              "embedding: both tables have one dtype and width, and each token a position");
  check_weights(a.out_TD.dtype, a.table_VD.dtype);
  with_type(a.out_TD.dtype, "embedding: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_width<T>(aligned(a.table_VD, a.positions_table_SD, a.out_TD), d, [&](auto n) {
      launch(where, {tokens}, kEmbeddingThreads, "embedding_forward",
             embedding_forward_kernel<T, decltype(n)::value>, a.tokens_T.as<std::int32_t>(),
             at<T>(a.table_VD), a.table_VD.size(0), a.first_row,
             placed ? a.positions_T.as<std::int32_t>() : nullptr, at<T>(a.positions_table_SD),
             at<T>(a.out_TD), d);
    });
  });
}

void embedding_backward(const Launch& where, const EmbeddingBackward& a) {
  const std::int64_t tokens = a.rows_T.numel(), held = a.dtable_VD.size(0), d = a.dtable_VD.size(1);
  base::check(a.dout_TD.size(0) == tokens && a.dout_TD.size(1) == d,
              "embedding: shapes of rows, dout and dtable");
  const bool accumulate = a.mode == WriteMode::accumulate;
  if (!accumulate && a.dtable_VD.numel() > 0)
    check(cudaMemsetAsync(a.dtable_VD.data, 0, static_cast<std::size_t>(a.dtable_VD.bytes()), where.stream),
          "embedding: clearing the gradient");
  if (tokens == 0 || held == 0 || d == 0) return;
  const SortedTokens sorted =
      sort_tokens(where, a.rows_T.as<std::int32_t>(), a.first_row, held, SortLayout(tokens, held));
  with_types(a.dout_TD.dtype, a.dtable_VD.dtype, [&](auto t, auto g) {
    using T = decltype(t);
    using G = decltype(g);
    with_width<T>(aligned(a.dout_TD, a.dtable_VD), d, [&](auto n) {
      constexpr int N = decltype(n)::value;
      launch(where, {tokens, ceil_div(d, kEmbeddingThreads * N)}, kEmbeddingThreads, "embedding_backward",
             embedding_backward_kernel<T, G, N>, sorted.rows, sorted.tokens, tokens, held, at<T>(a.dout_TD),
             at<G>(a.dtable_VD), d, accumulate);
    });
  });
}

}  // namespace trainerd::kernels::cuda
