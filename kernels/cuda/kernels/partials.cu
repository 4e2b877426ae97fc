// The second stage of sums over rows. Bytes: 4 parts n read. 528 parts of 4096 columns are 8.7 MB, mostly
// still in L2. It takes a few microseconds, the latency of 33 dependent steps per slice.

#include "kernels/cuda/kernels/partials.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kColumns = 32, kSlices = 16;

/// The lanes of a warp are neighbouring columns. Warp s adds parts s, s + 16, ..., then the slices are added
/// in order.
template <class G>
__global__ void __launch_bounds__(kColumns* kSlices)
    sum_partials_kernel(const float* partial, std::int64_t parts, std::int64_t stride, std::int64_t n, G* out,
                        bool add) {
  __shared__ float slices[kSlices][kColumns];
  const int lane = static_cast<int>(threadIdx.x % kColumns), slice = static_cast<int>(threadIdx.x / kColumns);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane;
  float total = 0.0f;
  if (column < n) {
#pragma unroll 4
    for (std::int64_t part = slice; part < parts; part += kSlices) total += partial[part * stride + column];
  }
  slices[slice][lane] = total;
  __syncthreads();
  if (slice != 0 || column >= n) return;
  total = 0.0f;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) total += slices[s][lane];
  if (add) total += widen(out[column]);
  out[column] = narrow<G>(total);
}

constexpr int kSumThreads = 128;

/// Partial sums of the columns of x [rows, n]: a block sums the rows of part blockIdx.y, each thread N
/// columns.
template <class T, int N>
__global__ void __launch_bounds__(kSumThreads)
    column_partials_kernel(const T* x, std::int64_t rows, std::int64_t n, std::int64_t rows_of_part,
                           float* partial, std::int64_t stride) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kSumThreads + threadIdx.x) * N;
  if (column >= n) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * rows_of_part, left = rows - begin,
                     count = left < rows_of_part ? left : rows_of_part;
  float total[N] = {};
  const T* from = x + begin * n + column;
#pragma unroll 4
  for (std::int64_t r = 0; r < count; ++r) {
    float v[N];
    load<N>(from + r * n, v);
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] += v[k];
  }
  store<N>(partial + blockIdx.y * stride + column, total);
}

}  // namespace

void sum_partials(const Launch& where, const float* partial, std::int64_t parts, const Tensor& out,
                  WriteMode mode) {
  const std::int64_t n = out.numel();
  with_type(out.dtype, "partial sums: fp32, bf16 or fp16", [&](auto g) {
    using G = decltype(g);
    launch(where, {ceil_div(n, kColumns)}, kColumns * kSlices, "sum_partials", sum_partials_kernel<G>,
           partial, parts, partial_stride(n), n, at<G>(out), mode == WriteMode::accumulate);
  });
}

// Bytes: T N elements read once; floor = bytes / memory bandwidth.
void column_sums(const Launch& where, const ColumnSums& a) {
  const std::int64_t rows = a.x_TN.size(0), n = a.x_TN.size(1);
  base::check(a.out_N.numel() == n, "column sums: one for each column");
  auto* partial = reinterpret_cast<float*>(where.scratch);
  const RowParts parts = row_parts(rows);
  with_type(a.x_TN.dtype, "column sums: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto width) {
      constexpr int N = decltype(width)::value;
      launch(where, {ceil_div(n, kSumThreads * N), parts.count}, kSumThreads, "column_sums",
             column_partials_kernel<T, N>, at<T>(a.x_TN), rows, n, parts.rows, partial, partial_stride(n));
    };
    if (aligned(a.x_TN) && n % kVec<T> == 0) run(std::integral_constant<int, kVec<T>>{});
    else run(std::integral_constant<int, 1>{});
  });
  sum_partials(where, partial, parts.count, a.out_N, a.mode);
}

}  // namespace trainerd::kernels::cuda
