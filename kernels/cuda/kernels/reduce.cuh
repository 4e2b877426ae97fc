#pragma once

// Sums over a warp and a block, in an order that only depends on the number of threads. All threads of the
// block take part, in whole warps, and all get the result.

#include <cuda_runtime.h>

#include <cstdint>

namespace trainerd::kernels::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x / 32); }
__device__ inline int warps_of_block() { return static_cast<int>(blockDim.x / 32); }

struct Plus {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};
/// A NaN is never the maximum.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Min {
  __device__ std::int32_t operator()(std::int32_t a, std::int32_t b) const { return a < b ? a : b; }
};

template <class Op, class A>
__device__ inline A warp_reduce(A x, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

/// K reductions at once; `identity` stands for warps that do not exist.
template <class Op, class A, int K>
__device__ inline void block_reduce(A (&x)[K], A identity, Op op) {
  __shared__ A parts[K][32];
  const int lane = lane_id(), warps = warps_of_block();
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_reduce(x[k], op);
  if (warps == 1) return;
  __syncthreads();  // wait for the readers of an earlier call
  if (lane == 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) parts[k][warp_id()] = x[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_reduce(lane < warps ? parts[k][lane] : identity, op);
}

template <class A, int K>
__device__ inline void block_sums(A (&x)[K]) {
  block_reduce(x, A{0}, Plus{});
}
template <class A>
__device__ inline A block_sum(A x) {
  A one[1] = {x};
  block_sums(one);
  return one[0];
}

}  // namespace trainerd::kernels::cuda
