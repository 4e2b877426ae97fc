#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <type_traits>

#include "kernels/tensor/dtype.h"

namespace trainerd::kernels::cuda {

/// 2^x with the special function unit: error of two units in the last place, denormals flushed to zero.
__host__ __device__ inline float exp2_fast(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::exp2f(x);
#endif
}

/// e^x. Results stored in 2 bytes need a relative error of 2^-20 at most. fp32 uses the accurate library
/// function.
template <class T>
__host__ __device__ inline float exp_for(float x) {
  if constexpr (sizeof(T) == 2) return exp2_fast(x * 1.4426950408889634f);
  else return ::expf(x);
}

template <class T>
__host__ __device__ inline float sigmoid_for(float x) {
  const float e = 1.0f + exp_for<T>(-x);
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(e));
    return y;
  }
#endif
  return 1.0f / e;
}

/// tanh x. For bf16 computed from the sigmoid, with an absolute error of 2^-21.
template <class T>
__host__ __device__ inline float tanh_for(float x) {
  if constexpr (std::is_same_v<T, Bf16>) return fmaf(2.0f, sigmoid_for<T>(2.0f * x), -1.0f);
  else return ::tanhf(x);
}

}  // namespace trainerd::kernels::cuda
