#pragma once

// How sums over rows are divided into partial sums. Depends only on the shape, so that a result depends
// neither on the device nor on timing. Host-only, because the planner uses it to size scratch.

#include <algorithm>
#include <cstdint>

#include "kernels/memory/memory.h"

namespace trainerd::kernels::cuda {

/// Rows [i * rows, ...) form part i, one block each. Four blocks per multiprocessor of the largest H200-class
/// device (132) keep it busy. With fewer than 16 rows, writing the partial sums would cost too much.
struct RowParts {
  std::int64_t rows = 0;
  std::int64_t count = 0;
};
constexpr RowParts row_parts(std::int64_t rows) {
  constexpr std::int64_t kMaxParts = 528, kMinRows = 16;
  const std::int64_t size = std::max(kMinRows, (rows + kMaxParts - 1) / kMaxParts);
  return {size, (rows + size - 1) / size};
}

/// Into how many parts the rows of each of several experts are divided, as long as their number is on the
/// device alone.
constexpr std::int64_t expert_parts(std::int64_t experts) {
  constexpr std::int64_t kOfAll = 256;
  return std::max<std::int64_t>(1, kOfAll / experts);
}

/// Floats between rows of partial sums.
constexpr std::int64_t partial_stride(std::int64_t columns) { return align_up(columns * 4) / 4; }
constexpr std::int64_t partial_bytes(std::int64_t rows, std::int64_t columns) {
  return row_parts(rows).count * partial_stride(columns) * 4;
}

}  // namespace trainerd::kernels::cuda
