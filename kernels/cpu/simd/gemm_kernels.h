#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace trainerd::kernels {

/// Tokens of one packed block of a weight gradient's reduction: 128 words, so that a panel of 64 columns (32
/// KiB) stays in the first-level cache. Whole blocks but the last.
constexpr std::int64_t wgrad_depth(DType dtype) { return 128 * 4 / size_of(dtype); }
/// Columns of a packed panel, and its rows of words in one such block.
constexpr std::int64_t kPanelColumns = 64;
constexpr std::int64_t kWgradWords = 128;
/// Columns of dy in one packed group of the left operand: eight tiles of six.
constexpr std::int64_t kWgradGroup = 48;

/// One thread's block of a weight gradient: rows [0, rows) of dw = dy^T x, over all tokens.
struct WgradBlock {
  DType dtype = DType::f32;       ///< of dy and x
  const std::byte* dy = nullptr;  ///< first column of the block in row 0
  std::int64_t dy_stride = 0;     ///< elements
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  const std::byte* packed_x = nullptr;  ///< block after block of the tokens, panel after panel
  std::int64_t columns = 0;
  std::byte* packed_dy = nullptr;      ///< scratch: round_up(rows, kWgradGroup) * kWgradWords words
  float* sums = nullptr;               ///< scratch or the gradient itself: rows x sums_stride
  std::int64_t sums_stride = 0;        ///< a multiple of 16
  WriteMode mode = WriteMode::assign;  ///< of `sums`
  float* bias_sums = nullptr;          ///< optional: `rows` column sums of dy, assigned
};

/// Rows of fp32 results on their way to memory: out (+)= sums (+ bias) (+ addend), rounded once.
struct FinishRows {
  const float* sums = nullptr;
  std::int64_t sums_stride = 0;
  std::int64_t rows = 0, columns = 0;
  DType bias_dtype = DType::f32;
  const std::byte* bias = nullptr;    ///< optional
  DType dtype = DType::f32;           ///< of addend and out
  const std::byte* addend = nullptr;  ///< optional, with the strides of `out`; may be `out`
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;
};

/// The GEMM parts of one instruction set that are ours: packing, the weight gradient, and the ends of a GEMM.
struct GemmKernels {
  /// Rows [64 panel, 64 panel + 64) of w[N, C] into that panel of the prepared form for y = x w^T:
  /// [N / 64][C in words][64] words. N a multiple of 64, C of 32.
  void (*prepare_fprop)(DType, const std::byte* weight, std::int64_t C, std::int64_t panel, std::byte* out);
  /// Rows [row, row + rows) of w[N, C] into the prepared form for dx = dy w: [C / 64][N in words][64] words.
  /// C a multiple of 64, `row` and `rows` of 2.
  void (*prepare_dgrad)(DType, const std::byte* weight, std::int64_t N, std::int64_t C, std::int64_t row,
                        std::int64_t rows, std::byte* out);
  /// Tokens of x (row stride in elements, at most wgrad_depth of them) into panels of kWgradWords rows.
  void (*pack_wgrad_x)(DType, const std::byte* x, std::int64_t stride, std::int64_t tokens,
                       std::int64_t columns, std::byte* out);
  void (*wgrad_block)(const WgradBlock&);
  void (*finish_rows)(const FinishRows&);
  /// sums[j] = sum over rows in rising order of x[row][j].
  void (*column_sums)(DType, const std::byte* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                      float* sums);
};

namespace portable {
const GemmKernels& gemm_kernels();
}
namespace avx512 {
const GemmKernels& gemm_kernels();
}

}  // namespace trainerd::kernels
