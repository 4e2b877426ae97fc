#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/thread_pool.h"

namespace trainerd::kernels {

/// Elements that one block of a flat or row-wise loop takes: some tens of kilobytes, far above the cost of
/// handing a block out and small enough to share a loop evenly.
constexpr std::int64_t kBlockElements = 16384;

/// Rows that make up about `kBlockElements`.
constexpr std::int64_t rows_per_block(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, row_elements));
}

/// Calls `body(begin, end)` on runs of `size` of [0, n), shared among the threads.
template <class Body>
void for_each_block(base::ThreadPool& pool, std::int64_t n, std::int64_t size, const Body& body) {
  pool.run((n + size - 1) / size,
           [&](std::int64_t block, int) { body(block * size, std::min(n, (block + 1) * size)); });
}

/// Elements that `ordered_sum` adds one after another before the blocks are added.
constexpr std::int64_t kOrderedSumBlock = 1024;

/// How rows are cut where each block leaves a partial sum that is added in block order: by the shape alone,
/// so that the sum is the same on any number of threads. At most 64 blocks, of at least 32 rows.
struct SumBlocks {
  std::int64_t rows = 0;   ///< rows of a block
  std::int64_t count = 0;  ///< blocks
};
constexpr SumBlocks sum_blocks(std::int64_t rows) {
  const std::int64_t size = std::max<std::int64_t>(32, (rows + 63) / 64);
  return {size, (rows + size - 1) / size};
}

}  // namespace trainerd::kernels
