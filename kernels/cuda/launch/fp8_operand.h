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

constexpr std::int64_t fp8_align(std::int64_t bytes) { return align_up(bytes, 256); }

/// Both operands of a product in one memory, with offsets in bytes: A [m, k], a weight or x, and B [n, k].
struct Fp8Scratch {
  std::int64_t a = 0, a_scales, b, b_scales, total;

  Fp8Scratch(std::int64_t m, std::int64_t n, std::int64_t k, bool weight)
      : a_scales(fp8_align(m * k)),
        b(a_scales + fp8_align(4 * (weight ? square_scales(m, k) : vector_scales(m, k)))),
        b_scales(b + fp8_align(n * k)),
        total(b_scales + fp8_align(4 * vector_scales(n, k))) {}
};

/// Operands of experts' products of rows [R, k] with a weight, transposed for dgrad, in one memory: offsets
/// in bytes. Widths of the weight of an expert are multiples of kFp8Block.
struct ExpertRowsScratch {
  std::int64_t rows = 0, rows_scales, weight, weight_scales, total;

  ExpertRowsScratch(const Tensor& rows_Rk, const Tensor& weight_NC, bool transposed)
      : rows_scales(fp8_align(rows_Rk.numel())),
        weight(rows_scales + fp8_align(4 * vector_scales(rows_Rk.size(0), rows_Rk.size(1)))),
        weight_scales(weight + fp8_align(weight_NC.numel())),
        total(weight_scales + fp8_align(4 * square_scales(weight_NC.size(transposed ? 1 : 0),
                                                          weight_NC.size(transposed ? 0 : 1)))) {}
};

/// Tiles of kFp8Block rows of each expert: more than there are for any split of the rows.
constexpr std::int64_t expert_tiles(std::int64_t rows, std::int64_t experts) {
  return rows / kFp8Block + experts;
}

/// The transposed operands of the weight gradient. Each tile of an expert's rows has kFp8Block columns;
/// scales are f32 [tiles, width].
struct ExpertWgradScratch {
  std::int64_t columns;  ///< of both transposed operands
  std::int64_t dy = 0, dy_scales, x, x_scales, total;

  ExpertWgradScratch(const Tensor& dy_RN, const Tensor& x_RC, const Tensor& first_E)
      : columns(expert_tiles(dy_RN.size(0), first_E.numel() - 1) * kFp8Block),
        dy_scales(fp8_align(columns * dy_RN.size(1))),
        x(dy_scales + fp8_align(4 * columns / kFp8Block * dy_RN.size(1))),
        x_scales(x + fp8_align(columns * x_RC.size(1))),
        total(x_scales + fp8_align(4 * columns / kFp8Block * x_RC.size(1))) {}
};

}  // namespace trainerd::kernels::cuda
