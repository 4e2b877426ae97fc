// Initial weights. Bytes: 4 n written (2 n in bf16). A Philox call, logarithm and sine or cosine per element
// cost more: about 150 instructions, 40 ms for 7.6 G elements on an H200, once per run. Uniform numbers are
// bitwise those of the CPU. log, sin and cos are the device's, within two units in the last place of the
// host's.

#include <cmath>

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/tensor/rng.h"

namespace trainerd::kernels::cuda {
namespace {

/// `normal_at` of kernels/tensor/rng.h with the device's functions.
__device__ inline float device_normal(std::uint64_t key, std::uint64_t index) {
  const auto bits = philox(key, index >> 2, 0);
  const bool upper = (index & 2u) != 0;
  const float radius = sqrtf(-2.0f * logf(unit_float(upper ? bits[2] : bits[0])));
  const float angle = 6.28318530717958647692f * unit_float(upper ? bits[3] : bits[1]);
  return radius * ((index & 1u) != 0 ? sinf(angle) : cosf(angle));
}

template <class T>
struct InitBody {
  T* x;
  std::uint64_t key;
  float stddev, mean;
  std::int64_t row, column, columns, logical_rows, logical_columns;
  bool uniform;
  template <int N>
  __device__ void at(std::int64_t i) const {
    static_assert(N == 1);
    const std::int64_t r = row + i / columns, c = column + i % columns;
    const auto index = static_cast<std::uint64_t>(r * logical_columns + c);
    if (r >= logical_rows || c >= logical_columns) {
      x[i] = narrow<T>(0.0f);
      return;
    }
    const float value = uniform ? uniform_at(key, index) : device_normal(key, index);
    // No fused multiply-add, because the CPU rounds the product.
    x[i] = narrow<T>(__fadd_rn(mean, __fmul_rn(stddev, value)));
  }
};

}  // namespace

void init_normal(const Launch& where, const InitNormal& a) {
  base::check(a.x.numel() == a.rows * a.columns, "init: the shard is rows x columns");
  with_type(a.x.dtype, "init: fp32, bf16 or fp16", [&](auto tag) {
    using T = decltype(tag);
    launch_flat<1>(where, a.x.numel(), true, "init_normal",
                   InitBody<T>{a.x.as<T>(), a.key, a.stddev, a.mean, a.row, a.column, a.columns,
                               a.logical_rows, a.logical_columns, a.draw == Draw::uniform});
  });
}

}  // namespace trainerd::kernels::cuda
