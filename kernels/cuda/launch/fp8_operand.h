#pragma once

// The form of FP8 operands (GemmFormat::fp8) for cuBLASLt on Hopper: the summed dimension k is innermost in
// both operands, and scales are factors of the rounded elements. Depends only on shapes; shared by the
// operators, the kernels that round and the planner.

#include <cstdint>

#include "kernels/memory/memory.h"
#include "kernels/ops/operand.h"

namespace trainerd::kernels::cuda {

/// Sizes of FP8 operands in all directions are multiples of this: 16 bytes.
constexpr std::int64_t kFp8Multiple = 16;

/// Scales of an operand [outer, k] in blocks of 1 x 128: f32 [fp8_blocks(k), outer].
constexpr std::int64_t vector_scales(std::int64_t outer, std::int64_t k) { return fp8_blocks(k) * outer; }
/// Of a row of blocks of 128 x 128, padded to a multiple of 4.
constexpr std::int64_t square_stride(std::int64_t k) { return (fp8_blocks(k) + 3) / 4 * 4; }
/// Scales of an operand [outer, k] in blocks of 128 x 128: f32 [fp8_blocks(outer), square_stride(k)].
constexpr std::int64_t square_scales(std::int64_t outer, std::int64_t k) {
  return fp8_blocks(outer) * square_stride(k);
}

/// Both operands of a product in one memory, with offsets in bytes: A [m, k], a weight or x, and B [n, k].
struct Fp8Scratch {
  std::int64_t a = 0, a_scales, b, b_scales, total;

  Fp8Scratch(std::int64_t m, std::int64_t n, std::int64_t k, bool weight)
      : a_scales(align(m * k)),
        b(a_scales + align(4 * (weight ? square_scales(m, k) : vector_scales(m, k)))),
        b_scales(b + align(n * k)),
        total(b_scales + align(4 * vector_scales(n, k))) {}

 private:
  static std::int64_t align(std::int64_t bytes) { return align_up(bytes, 256); }
};

}  // namespace trainerd::kernels::cuda
