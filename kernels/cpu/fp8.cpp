#include "kernels/cpu/fp8.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace trainerd::kernels {

Tensor Fp8Operands::copy_of(const Tensor& x) const {
  base::check(x.dtype == DType::bf16 && x.shape.ndim == 2, "FP8 operands are rounded from bf16 matrices");
  return scratch_.take(DType::bf16, x.shape, MemoryTerm::workspace);
}

Tensor Fp8Operands::by_rows(const Tensor& x) const {
  const Tensor out = copy_of(x);
  const std::int64_t columns = x.size(1);
  pool_.run(x.size(0), [&](std::int64_t row, int) {
    for (std::int64_t c = 0; c < columns; c += kFp8Block)
      vector_.round_fp8_block(x.as<Bf16>() + row * columns + c, out.as<Bf16>() + row * columns + c, 1,
                              std::min(kFp8Block, columns - c), columns);
  });
  return out;
}

Tensor Fp8Operands::by_tiles(const Tensor& x, RoundTile round) const {
  const Tensor out = copy_of(x);
  const std::int64_t rows = x.size(0), columns = x.size(1), across = fp8_blocks(columns);
  pool_.run(fp8_blocks(rows) * across, [&](std::int64_t block, int) {
    const std::int64_t r = block / across * kFp8Block, c = block % across * kFp8Block;
    round(x.as<Bf16>() + r * columns + c, out.as<Bf16>() + r * columns + c, std::min(kFp8Block, rows - r),
          std::min(kFp8Block, columns - c), columns);
  });
  return out;
}

Tensor Fp8Operands::by_columns(const Tensor& x) const { return by_tiles(x, vector_.round_fp8_columns); }

Tensor Fp8Operands::by_squares(const Tensor& x) const { return by_tiles(x, vector_.round_fp8_block); }

Weight Fp8Operands::rounded(Weight weight) const {
  if (!weight.prepared.defined()) weight.plain_NC = by_squares(weight.plain_NC);
  weight.format = GemmFormat::plain;
  return weight;
}

}  // namespace trainerd::kernels
