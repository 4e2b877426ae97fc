#pragma once

// What every launcher shares: the launch itself, the choice of types, and when 16-byte accesses are allowed.

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
  int shared_bytes = 0;  ///< dynamic shared memory of a block
};

/// Launches `kernel` on the stream of `at`; nothing when the grid is empty. Arguments become the kernel's own
/// parameter types.
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
  // What every kernel may use is 48 KB; more must be asked for, on each device.
  if (grid.shared_bytes > 48 << 10)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes), name);
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Threads for `items` of them: whole warps, at least one, at most `most`.
constexpr int threads_for(std::int64_t items, int most) {
  const std::int64_t warps = ceil_div(items, 32) * 32;
  return static_cast<int>(warps < 32 ? 32 : warps > most ? most : warps);
}

inline bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

/// Calls `f` with a value of the type that `dtype` names: float or Bf16.
template <class F>
void with_type(DType dtype, const char* what, const F& f) {
  base::check(is_float(dtype), what);
  if (dtype == DType::bf16) f(Bf16{});
  else f(float{});
}

/// Elements of the type of `tensor`; null when it is undefined. The dtype was looked at by the caller.
template <class T>
T* at(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<T*>(tensor.data) : nullptr;
}

/// Whether all tensors begin at a multiple of 16 bytes. An undefined one does.
template <class... Tensors>
bool aligned(const Tensors&... tensors) {
  return ((!tensors.defined() || reinterpret_cast<std::uintptr_t>(tensors.data) % 16 == 0) && ...);
}

}  // namespace trainerd::kernels::cuda
