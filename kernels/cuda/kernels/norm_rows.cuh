#pragma once

// One block per row (forward) or per run of rows (backward). A row that fits is held in registers, V vectors
// of N elements per thread. A longer or unaligned row is read again for each pass, usually from the cache.

#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {

constexpr int kNormThreads = 512;
constexpr int kNormVectors = 2;

template <class T>
struct NormForward {
  const T* residual;
  const T* delta;  ///< may be null
  T* sum;          ///< used with delta
  const T* weight;
  const T* bias;  ///< may be null
  T* y;
  float* mean;
  float* rstd;
  std::int64_t columns;
  float inverse_d;  ///< 1 / columns
  float eps;
  float weight_offset;
  bool layer;
};

/// Writes y for N elements that begin at `column`. fp32 throughout, rounded once.
template <int N, class T>
__device__ inline void write_normed(const NormForward<T>& a, T* y, std::int64_t column, float (&x)[N],
                                    float mean, float rstd) {
  float w[N];
  load<N>(a.weight + column, w);
  if (a.bias != nullptr) {
    float b[N];
    load<N>(a.bias + column, b);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = fmaf((x[k] - mean) * rstd, w[k] + a.weight_offset, b[k]);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = (x[k] - mean) * rstd * (w[k] + a.weight_offset);
  }
  store<N>(y + column, x);
}

template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) add_norm_forward_kernel(NormForward<T> a) {
  constexpr int V = kNormVectors;
  const std::int64_t row = blockIdx.x, begin = row * a.columns;
  float x[V][N];
  // All loads come before the first store: they cannot be moved past it, because it may be to the same
  // memory.
  Raw<T, N> residual[V], delta[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const std::int64_t column = (static_cast<std::int64_t>(v) * blockDim.x + threadIdx.x) * N;
    if (column >= a.columns) continue;
    residual[v] = fetch<N>(a.residual + begin + column);
    if (a.delta != nullptr) delta[v] = fetch<N>(a.delta + begin + column);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const std::int64_t column = (static_cast<std::int64_t>(v) * blockDim.x + threadIdx.x) * N;
    if (column < a.columns) {
      unpack<N>(residual[v], x[v]);
      if (a.delta != nullptr) {
        float more[N];
        unpack<N>(delta[v], more);
#pragma unroll
        for (int k = 0; k < N; ++k) x[v][k] += more[k];
        // The statistics use the sum as stored, which is what the backward reads.
        store_and_round<N>(a.sum + begin + column, x[v]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) x[v][k] = 0.0f;
    }
  }
  float mean = 0.0f;
  if (a.layer) {
    // A second pass over the row: subtracting two large sums would lose precision of the variance.
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int k = 0; k < N; ++k) total += x[v][k];
    mean = block_sum(total) * a.inverse_d;
  }
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if ((static_cast<std::int64_t>(v) * blockDim.x + threadIdx.x) * N >= a.columns) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) squares = fmaf(x[v][k] - mean, x[v][k] - mean, squares);
  }
  const float rstd = rsqrtf(fmaf(block_sum(squares), a.inverse_d, a.eps));
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if (a.layer) a.mean[row] = mean;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const std::int64_t column = (static_cast<std::int64_t>(v) * blockDim.x + threadIdx.x) * N;
    if (column < a.columns) write_normed<N>(a, a.y + begin, column, x[v], mean, rstd);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) add_norm_forward_long_kernel(NormForward<T> a) {
  const std::int64_t row = blockIdx.x, begin = row * a.columns;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * N,
                     step = static_cast<std::int64_t>(blockDim.x) * N;
  // Only this thread reads back what it writes to `sum`.
  const T* from = a.delta != nullptr ? a.sum : a.residual;
  float x[N], total = 0.0f;
  if (a.delta != nullptr || a.layer) {
    for (std::int64_t column = first; column < a.columns; column += step) {
      load<N>(a.residual + begin + column, x);
      if (a.delta != nullptr) {
        float delta[N];
        load<N>(a.delta + begin + column, delta);
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] += delta[k];
        store_and_round<N>(a.sum + begin + column, x);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) total += x[k];
    }
  }
  const float mean = a.layer ? block_sum(total) * a.inverse_d : 0.0f;
  float squares = 0.0f;
  for (std::int64_t column = first; column < a.columns; column += step) {
    load<N>(from + begin + column, x);
#pragma unroll
    for (int k = 0; k < N; ++k) squares = fmaf(x[k] - mean, x[k] - mean, squares);
  }
  const float rstd = rsqrtf(fmaf(block_sum(squares), a.inverse_d, a.eps));
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if (a.layer) a.mean[row] = mean;
  }
  for (std::int64_t column = first; column < a.columns; column += step) {
    load<N>(from + begin + column, x);
    write_normed<N>(a, a.y + begin, column, x, mean, rstd);
  }
}

/// With xh = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - xh mean(g xh)) + dsum. The RMS norm
/// has neither the mean nor the term mean(g) (Zhang and Sennrich, arXiv 1910.07467). dweight = sum of dy xh
/// over rows, dbias = sum of dy.
template <class T>
struct NormBackward {
  const T* dy;
  const T* dsum;  ///< may be null
  const T* sum;
  const T* weight;
  const float* mean;  ///< only for a layer norm
  const float* rstd;
  T* dx;  ///< may be dy or dsum: a row's elements are read before they are written, by the same thread
  float* weight_partial;
  float* bias_partial;  ///< may be null
  std::int64_t rows, columns, rows_of_part, stride;
  float inverse_d;  ///< 1 / columns
  float weight_offset;
  bool layer;
};

template <class T, int N, bool kBias>
__global__ void __launch_bounds__(kNormThreads) add_norm_backward_kernel(NormBackward<T> a) {
  constexpr int V = kNormVectors;
  const std::int64_t begin = blockIdx.x * a.rows_of_part,
                     end = begin + a.rows_of_part < a.rows ? begin + a.rows_of_part : a.rows;
  std::int64_t columns[V];
#pragma unroll
  for (int v = 0; v < V; ++v) columns[v] = (static_cast<std::int64_t>(v) * blockDim.x + threadIdx.x) * N;
  float dweight[V][N] = {}, dbias[kBias ? V : 1][N] = {};

  // Fetch the next row while this one is reduced.
  Raw<T, N> next_x[V], next_dy[V], next_dsum[V];
  const auto fetch_row = [&](std::int64_t row) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (columns[v] >= a.columns) continue;
      const std::int64_t i = row * a.columns + columns[v];
      next_x[v] = fetch<N>(a.sum + i);
      next_dy[v] = fetch<N>(a.dy + i);
      if (a.dsum != nullptr) next_dsum[v] = fetch<N>(a.dsum + i);
    }
  };
  fetch_row(begin);
  for (std::int64_t row = begin; row < end; ++row) {
    const float mean = a.layer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float xh[V][N], dy[V][N], sums[2] = {0.0f, 0.0f};
    Raw<T, N> dsum[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (columns[v] >= a.columns) continue;
      unpack<N>(next_x[v], xh[v]);
      unpack<N>(next_dy[v], dy[v]);
      dsum[v] = next_dsum[v];
      float w[N];
      load<N>(a.weight + columns[v], w);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        xh[v][k] = (xh[v][k] - mean) * rstd;
        const float g = dy[v][k] * (w[k] + a.weight_offset);
        sums[0] += g;
        sums[1] = fmaf(g, xh[v][k], sums[1]);
      }
    }
    if (row + 1 < end) fetch_row(row + 1);
    block_sums(sums);
    const float g_mean = a.layer ? sums[0] * a.inverse_d : 0.0f, gx_mean = sums[1] * a.inverse_d;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (columns[v] >= a.columns) continue;
      float w[N], r[N];
      load<N>(a.weight + columns[v], w);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        r[k] = fmaf(-xh[v][k], gx_mean, dy[v][k] * (w[k] + a.weight_offset) - g_mean) * rstd;
        dweight[v][k] = fmaf(dy[v][k], xh[v][k], dweight[v][k]);
        if constexpr (kBias) dbias[v][k] += dy[v][k];
      }
      if (a.dsum != nullptr) {
        float other[N];
        unpack<N>(dsum[v], other);
#pragma unroll
        for (int k = 0; k < N; ++k) r[k] += other[k];
      }
      store<N>(a.dx + row * a.columns + columns[v], r);
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (columns[v] >= a.columns) continue;
    store<N>(a.weight_partial + blockIdx.x * a.stride + columns[v], dweight[v]);
    if constexpr (kBias) store<N>(a.bias_partial + blockIdx.x * a.stride + columns[v], dbias[v]);
  }
}

/// The same for rows of any length. The partial sums are in memory; each element is written by one thread
/// only.
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) add_norm_backward_long_kernel(NormBackward<T> a) {
  const std::int64_t begin = blockIdx.x * a.rows_of_part,
                     end = begin + a.rows_of_part < a.rows ? begin + a.rows_of_part : a.rows;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * N,
                     step = static_cast<std::int64_t>(blockDim.x) * N;
  float* const dweight = a.weight_partial + blockIdx.x * a.stride;
  float* const dbias = a.bias_partial == nullptr ? nullptr : a.bias_partial + blockIdx.x * a.stride;
  for (std::int64_t row = begin; row < end; ++row) {
    const float mean = a.layer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    const std::int64_t at_row = row * a.columns;
    float x[N], dy[N], w[N], sums[2] = {0.0f, 0.0f};
    for (std::int64_t column = first; column < a.columns; column += step) {
      load<N>(a.sum + at_row + column, x);
      load<N>(a.dy + at_row + column, dy);
      load<N>(a.weight + column, w);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float g = dy[k] * (w[k] + a.weight_offset);
        sums[0] += g;
        sums[1] = fmaf(g, (x[k] - mean) * rstd, sums[1]);
      }
    }
    block_sums(sums);
    const float g_mean = a.layer ? sums[0] * a.inverse_d : 0.0f, gx_mean = sums[1] * a.inverse_d;
    for (std::int64_t column = first; column < a.columns; column += step) {
      float r[N], total[N] = {}, bias_total[N] = {};
      load<N>(a.sum + at_row + column, x);
      load<N>(a.dy + at_row + column, dy);
      load<N>(a.weight + column, w);
      if (row > begin) {
        load<N>(dweight + column, total);
        if (dbias != nullptr) load<N>(dbias + column, bias_total);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float xh = (x[k] - mean) * rstd;
        r[k] = fmaf(-xh, gx_mean, dy[k] * (w[k] + a.weight_offset) - g_mean) * rstd;
        total[k] = fmaf(dy[k], xh, total[k]);
        bias_total[k] += dy[k];
      }
      if (a.dsum != nullptr) {
        float other[N];
        load<N>(a.dsum + at_row + column, other);
#pragma unroll
        for (int k = 0; k < N; ++k) r[k] += other[k];
      }
      store<N>(dweight + column, total);
      if (dbias != nullptr) store<N>(dbias + column, bias_total);
      store<N>(a.dx + at_row + column, r);
    }
  }
}

}  // namespace trainerd::kernels::cuda
