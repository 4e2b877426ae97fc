#pragma once

// Stochastic rounding of a bf16 state: see kernels/ops/update.h.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/kernels/vec.cuh"
#include "kernels/ops/update.h"
#include "kernels/tensor/rng.h"

namespace trainerd::kernels::cuda {

/// The `rounding_bits` words of the elements [i, i + N) of a range.
template <int N>
__device__ inline void draw_words(const UpdateRange& range, std::int64_t i, std::int64_t step,
                                  std::uint32_t (&words)[N]) {
  const std::int64_t first = range.first + i;
  if (N % 4 == 0 && range.columns == range.stride && first % 4 == 0) {
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const auto bits =
          philox(range.key, static_cast<std::uint64_t>(first + k) >> 2, static_cast<std::uint64_t>(step));
      words[k] = bits[0];
      if constexpr (N % 4 == 0) words[k + 1] = bits[1], words[k + 2] = bits[2], words[k + 3] = bits[3];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const std::int64_t at =
          range.columns == range.stride
              ? first + k
              : range.first + (i + k) / range.columns * range.stride + (i + k) % range.columns;
      words[k] = rounding_bits(range.key, static_cast<std::uint64_t>(at), step);
    }
  }
}

/// Rounds x to T; for bf16 with 16 random bits.
template <class T>
__device__ inline float rounded_by(float x, std::uint32_t random16) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    return (u & 0x7f800000u) == 0x7f800000u ? x : std::bit_cast<float>((u + random16) & 0xffff0000u);
  } else {
    return x;
  }
}

}  // namespace trainerd::kernels::cuda
