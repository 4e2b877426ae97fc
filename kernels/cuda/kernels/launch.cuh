#pragma once

// Common to all launchers: the launch itself, the choice of types, and the check for 16-byte accesses.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/kernels/kernels.h"
#include "kernels/cuda/runtime/check_runtime.h"

namespace trainerd::kernels::cuda {

struct Grid {
  std::int64_t x = 0;
  std::int64_t y = 1;
  int shared_bytes = 0;  ///< dynamic shared memory per block
};

/// Launches `kernel` on the stream of `at`, or nothing if the grid is empty. Converts arguments to the
/// kernel's parameter types.
template <class... Params, class... Args>
void launch(const Launch& at, Grid grid, int threads, const char* name, void (*kernel)(Params...),
            Args&&... args) {
  if (grid.x == 0 || grid.y == 0) return;
  base::check(grid.x <= 0x7fffffff && grid.y <= 65535, "a launch has more blocks than a grid holds");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = at.stream;
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  // Every kernel may use less than 48 KB; more must be requested, on each device.
  if (grid.shared_bytes >= 48 << 10)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes), name);
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Number of threads for `items` items: whole warps, at least one, at most `most` threads.
constexpr int threads_for(std::int64_t items, int most) {
  const std::int64_t warps = ceil_div(items, 32) * 32;
  return static_cast<int>(warps < 32 ? 32 : warps > most ? most : warps);
}

/// Calls `f` with a value of the type of `dtype`: float, Bf16 or Fp16.
template <class F>
void with_type(DType dtype, const char* what, const F& f) {
  base::check(is_float(dtype), what);
  if (dtype == DType::bf16) f(Bf16{});
  else if (dtype == DType::f16) f(Fp16{});
  else f(float{});
}
/// The same for optimizer states and gradients of parameters: float or Bf16.
template <class F>
void with_state_type(DType dtype, const char* what, const F& f) {
  base::check(dtype == DType::f32 || dtype == DType::bf16, what);
  if (dtype == DType::bf16) f(Bf16{});
  else f(float{});
}
/// Calls `f` with values of two types, which are not Bf16 and Fp16.
template <class F>
void with_types(DType a, DType b, const F& f) {
  check_not_mixed(a, b);
  if (a == DType::f16) return b == DType::f16 ? f(Fp16{}, Fp16{}) : f(Fp16{}, float{});
  if (b == DType::f16) return f(float{}, Fp16{});
  with_state_type(a, "", [&](auto x) { with_state_type(b, "", [&](auto y) { f(x, y); }); });
}
/// Calls `f` with a Bf16 or an Fp16.
template <class F>
void with_half_type(DType dtype, const F& f) {
  if (dtype == DType::f16) f(Fp16{});
  else f(Bf16{});
}
/// The same for activations with weight gradients of type `Gradient`, which are float for Fp16.
template <class Gradient, class F>
void with_half_and_gradient(DType activations, const F& f) {
  check_not_mixed(activations, DTypeOf<Gradient>::value);
  if constexpr (std::is_same_v<Gradient, float>) with_half_type(activations, f);
  else f(Bf16{});
}
/// Elements of `tensor`; null if it is undefined. The caller has checked the dtype.
template <class T>
T* at(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<T*>(tensor.data) : nullptr;
}

/// True if all tensors begin at a multiple of 16 bytes. Undefined ones count as aligned.
template <class... Tensors>
bool aligned(const Tensors&... tensors) {
  return ((!tensors.defined() || reinterpret_cast<std::uintptr_t>(tensors.data) % 16 == 0) && ...);
}

}  // namespace trainerd::kernels::cuda
