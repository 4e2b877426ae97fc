#pragma once

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {

constexpr int kFlatThreads = 256;

/// Calls body.at<N>(i) for i = 0, N, 2N, ... and body.at<1>(i) for the rest of n; each element once.
template <int N, class Body>
__global__ void __launch_bounds__(kFlatThreads) flat_kernel(std::int64_t n, Body body) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x,
                     vectors = n / N;
  if (thread < vectors) {
    body.template at<N>(thread * N);
  } else if constexpr (N > 1) {
    const std::int64_t i = vectors * N + (thread - vectors);
    if (i < n) body.template at<1>(i);
  }
}

/// Uses one thread per N elements if the tensors are aligned for it, else one per element.
template <int N, class Body>
void launch_flat(const Launch& where, std::int64_t n, bool vectors, const char* name, const Body& body) {
  if (vectors)
    launch(where, {ceil_div(n / N + n % N, kFlatThreads)}, kFlatThreads, name, flat_kernel<N, Body>, n, body);
  else launch(where, {ceil_div(n, kFlatThreads)}, kFlatThreads, name, flat_kernel<1, Body>, n, body);
}

/// Calls `f` with the vector width for rows of `columns` elements: that of T, or 1.
template <class T, class F>
void with_width(bool vectors, std::int64_t columns, const F& f) {
  if (vectors && columns % kVec<T> == 0) f(std::integral_constant<int, kVec<T>>{});
  else f(std::integral_constant<int, 1>{});
}

}  // namespace trainerd::kernels::cuda
