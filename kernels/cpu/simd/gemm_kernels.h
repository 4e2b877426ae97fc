#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/ops.h"

namespace trainerd::kernels {

/// Tokens of one packed block of a weight gradient's reduction: 128 words, so that a panel of 64 columns (32
/// KiB) stays in the first-level cache. All blocks but the last have this size.
constexpr std::int64_t wgrad_depth(DType dtype) { return 128 * 4 / size_of(dtype); }
/// Columns are packed in multiples of this, which the panels of each instruction set divide. kWgradWords is
/// the number of word rows of a panel in one such block.
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
  const std::byte* packed_x = nullptr;  ///< by block of tokens, then by panel
  std::int64_t packed_x_words = 0;      ///< words per block of tokens
  std::int64_t columns = 0;
  std::byte* packed_dy = nullptr;      ///< scratch: round_up(rows, kWgradGroup) * kWgradWords words
  float* sums = nullptr;               ///< scratch or the gradient itself: rows x sums_stride
  std::int64_t sums_stride = 0;        ///< a multiple of 16
  WriteMode mode = WriteMode::assign;  ///< mode of the first addition to `sums`
  float* bias_sums = nullptr;          ///< optional: `rows` column sums of dy, assigned
};

/// One thread's block of y = x w^T, or of dx = dy w, in fp32: rows [0, rows) of out (+)= in . w (+ bias) (+
/// addend).
struct LinearBlock {
  const float* in = nullptr;  ///< [rows][depth], contiguous
  std::int64_t rows = 0, depth = 0, columns = 0;
  const std::byte* prepared = nullptr;  ///< prepared weight of `columns` columns
  WriteMode mode = WriteMode::assign;
  DType bias_dtype = DType::f32;
  const std::byte* bias = nullptr;  ///< optional
  const float* addend = nullptr;    ///< optional, like `out`
  float* out = nullptr;             ///< [rows][columns], contiguous
};

/// Final step for rows of fp32 results: out (+)= sums (+ bias) (+ addend), rounded once.
struct FinishRows {
  const float* sums = nullptr;
  std::int64_t sums_stride = 0;
  std::int64_t rows = 0, columns = 0;
  DType bias_dtype = DType::f32;
  const std::byte* bias = nullptr;    ///< optional
  DType dtype = DType::f32;           ///< dtype of addend and out
  const std::byte* addend = nullptr;  ///< optional, with the strides of `out`; may be `out`
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;
};

/// Our own GEMM kernels of one instruction set: packing, the weight gradient, and the final steps of a GEMM.
struct GemmKernels {
  /// Packs rows [64 block, 64 block + 64) of w[N, C] into the prepared form for y = x w^T: [N / P][C in
  /// words][P] words, in panels of P columns. P is 64 with AVX-512, as oneDNN reads it there, else 16. N must
  /// be a multiple of 64, C of 32.
  void (*prepare_fprop)(DType, const std::byte* weight, std::int64_t C, std::int64_t block, std::byte* out);
  /// Packs rows [row, row + rows) of w[N, C] into the prepared form for dx = dy w: [C / P][N in words][P]
  /// words. C must be a multiple of 64, `row` and `rows` of 2.
  void (*prepare_dgrad)(DType, const std::byte* weight, std::int64_t N, std::int64_t C, std::int64_t row,
                        std::int64_t rows, std::byte* out);
  /// Packs tokens of x (row stride in elements, at most wgrad_depth tokens) into panels of kWgradWords rows.
  void (*pack_wgrad_x)(DType, const std::byte* x, std::int64_t stride, std::int64_t tokens,
                       std::int64_t columns, std::byte* out);
  void (*wgrad_block)(const WgradBlock&);
  /// out[column][row] = in[row][column], bf16 (strides in elements). Rows are zero-padded to a multiple of
  /// 32. `out` has columns up to a multiple of 16; the extra ones are undefined.
  void (*transpose)(const std::byte* in, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                    std::byte* out, std::int64_t out_stride);
  void (*linear_block)(const LinearBlock&);
  void (*finish_rows)(const FinishRows&);
  /// sums[j] = sum of x[row][j] over rows in rising order.
  void (*column_sums)(DType, const std::byte* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                      float* sums);
};

namespace portable {
const GemmKernels& gemm_kernels();
}
namespace avx2 {
const GemmKernels& gemm_kernels();
}
namespace avx512 {
const GemmKernels& gemm_kernels();
}
namespace avx512_bf16 {
const GemmKernels& gemm_kernels();
}

}  // namespace trainerd::kernels
