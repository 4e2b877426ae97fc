#pragma once

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/kernel_tables.h"
#include "kernels/memory/memory.h"
#include "kernels/ops/operand.h"

namespace trainerd::kernels {

/// The CPU multiplies operands in FP8 (GemmFormat::fp8) as bf16 operands with the same values: these are
/// rounded copies in scratch. Threads divide the blocks, so no bit depends on their number.
class Fp8Operands {
 public:
  Fp8Operands(Arena& scratch, base::ThreadPool& pool, const VectorKernels& vector)
      : scratch_(scratch), pool_(pool), vector_(vector) {}

  /// In blocks of 128 columns of a row.
  Tensor by_rows(const Tensor& x) const;
  /// Of 128 rows of a column.
  Tensor by_columns(const Tensor& x) const;
  /// Of 128 x 128.
  Tensor by_squares(const Tensor& x) const;
  /// For a plain product. A prepared form is of a rounded weight.
  Weight rounded(Weight weight) const;

 private:
  using RoundTile = decltype(VectorKernels::round_fp8_block);
  Tensor copy_of(const Tensor& x) const;
  /// Calls `round` for each tile of 128 x 128.
  Tensor by_tiles(const Tensor& x, RoundTile round) const;

  Arena& scratch_;
  base::ThreadPool& pool_;
  const VectorKernels& vector_;
};

}  // namespace trainerd::kernels
