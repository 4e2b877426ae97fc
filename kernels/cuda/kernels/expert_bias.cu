// Biases of experts and their gradients. Floor = bytes / memory bandwidth: adding reads and writes each row
// once; the gradient reads each once, and once more for the weights' gradient.

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/partials.cuh"
#include "kernels/cuda/kernels/reduce.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kBiasThreads = 256;
constexpr int kBiasWarps = kBiasThreads / 32;

/// The expert of a row in use.
__device__ inline int expert_of(const std::int32_t* first, int experts, std::int64_t row) {
  int low = 0, high = experts - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (first[middle + 1] <= row) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// A block adds kBiasThreads x N columns of one row.
template <class T, int N>
__global__ void __launch_bounds__(kBiasThreads)
    add_expert_bias_kernel(const T* bias, const std::int32_t* first, int experts, std::int64_t columns,
                           unsigned chunks, T* y) {
  const std::int64_t row = blockIdx.x / chunks,
                     column =
                         (static_cast<std::int64_t>(blockIdx.x % chunks) * kBiasThreads + threadIdx.x) * N;
  if (column >= columns || row >= first[experts]) return;
  float x[N], b[N];
  load<N>(y + row * columns + column, x);
  load<N>(bias + expert_of(first, experts, row) * columns + column, b);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] += b[k];
  store<N>(y + row * columns + column, x);
}

/// A thread sums N columns over the rows of part blockIdx.y of an expert. Partial sums of all experts'
/// columns are `stride` apart.
template <class T, int N>
__global__ void __launch_bounds__(kBiasThreads)
    expert_bias_partials_kernel(const T* dy, const std::int32_t* first, const std::int32_t* source,
                                const float* weights, std::int64_t columns, unsigned chunks,
                                std::int64_t parts, float* partial, std::int64_t stride) {
  const std::int64_t expert = blockIdx.x / chunks,
                     column =
                         (static_cast<std::int64_t>(blockIdx.x % chunks) * kBiasThreads + threadIdx.x) * N;
  if (column >= columns) return;
  const std::int64_t rows = first[expert + 1] - first[expert], of_part = (rows + parts - 1) / parts,
                     begin = blockIdx.y * of_part, end = begin + of_part < rows ? begin + of_part : rows;
  float sum[N] = {}, x[N];
#pragma unroll 2
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t r = first[expert] + i;
    load<N>(dy + r * columns + column, x);
    const float weight = weights == nullptr ? 1.0f : weights[source[r]];
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = fmaf(weight, x[k], sum[k]);
  }
  store<N>(partial + blockIdx.y * stride + expert * columns + column, sum);
}

/// A warp takes one row.
template <class T, int N>
__global__ void __launch_bounds__(kBiasThreads)
    expert_bias_weights_kernel(const T* dy, const T* bias, const std::int32_t* first, int experts,
                               const std::int32_t* source, std::int64_t rows, std::int64_t columns,
                               float* dweights) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kBiasWarps + warp_id();
  if (row >= rows || row >= first[experts]) return;
  const T* of_expert = bias + expert_of(first, experts, row) * columns;
  float sum = 0;
  for (std::int64_t c = lane_id() * N; c < columns; c += 32 * N) {
    float d[N], b[N];
    load<N>(dy + row * columns + c, d);
    load<N>(of_expert + c, b);
#pragma unroll
    for (int k = 0; k < N; ++k) sum = fmaf(d[k], b[k], sum);
  }
  sum = warp_reduce(sum, Plus{});
  if (lane_id() == 0) dweights[source[row]] += sum;
}

}  // namespace

void add_expert_bias(const Launch& where, const AddExpertBias& a) {
  check_args(a);
  const std::int64_t rows = a.y_RN.size(0), columns = a.y_RN.size(1);
  with_type(a.y_RN.dtype, "expert bias: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_width<T>(aligned(a.y_RN, a.bias_EN), columns, [&](auto n) {
      constexpr int N = decltype(n)::value;
      const std::int64_t chunks = ceil_div(columns, N * kBiasThreads);
      launch(where, {rows * chunks}, kBiasThreads, "add_expert_bias", add_expert_bias_kernel<T, N>,
             at<T>(a.bias_EN), at<std::int32_t>(a.first_E), static_cast<int>(a.first_E.numel() - 1), columns,
             static_cast<unsigned>(chunks), at<T>(a.y_RN));
    });
  });
}

void expert_bias_backward(const Launch& where, const ExpertBiasBackward& a) {
  check_args(a);
  const std::int64_t rows = a.dy_RN.size(0), columns = a.dy_RN.size(1), experts = a.first_E.numel() - 1;
  if (a.dbias_EN.defined()) {
    auto* partial = reinterpret_cast<float*>(where.scratch);
    const std::int64_t parts = expert_parts(experts), stride = partial_stride(a.dbias_EN.numel());
    with_type(a.dy_RN.dtype, "expert bias: fp32, bf16 or fp16", [&](auto t) {
      using T = decltype(t);
      with_width<T>(aligned(a.dy_RN), columns, [&](auto n) {
        constexpr int N = decltype(n)::value;
        const std::int64_t chunks = ceil_div(columns, N * kBiasThreads);
        launch(where, {experts * chunks, parts}, kBiasThreads, "expert_bias_partials",
               expert_bias_partials_kernel<T, N>, at<T>(a.dy_RN), at<std::int32_t>(a.first_E),
               at<std::int32_t>(a.source_R), at<float>(a.weight_TK), columns, static_cast<unsigned>(chunks),
               parts, partial, stride);
      });
    });
    sum_partials(where, partial, parts, a.dbias_EN, a.mode);
  }
  if (!a.bias_EN.defined()) return;
  with_type(a.dy_RN.dtype, "expert bias: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_width<T>(aligned(a.dy_RN, a.bias_EN), columns, [&](auto n) {
      launch(where, {ceil_div(rows, kBiasWarps)}, kBiasThreads, "expert_bias_weights",
             expert_bias_weights_kernel<T, decltype(n)::value>, at<T>(a.dy_RN), at<T>(a.bias_EN),
             at<std::int32_t>(a.first_E), static_cast<int>(experts), at<std::int32_t>(a.source_R), rows,
             columns, at<float>(a.dweight_TK));
    });
  });
}

}  // namespace trainerd::kernels::cuda
