#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/thread_pool.h"

namespace trainerd::kernels {

/// Elements of one block of a flat or row-wise loop: some tens of kilobytes. That is far above the cost of
/// assigning a block, and small enough to share a loop evenly.
constexpr std::int64_t kBlockElements = 16384;

/// Rows that make up about `kBlockElements`.
constexpr std::int64_t rows_per_block(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, row_elements));
}

/// Calls `body(begin, end)` for runs of `size` of [0, n), distributed over the threads.
template <class Body>
void for_each_block(base::ThreadPool& pool, std::int64_t n, std::int64_t size, const Body& body) {
  pool.run((n + size - 1) / size,
           [&](std::int64_t block, int) { body(block * size, std::min(n, (block + 1) * size)); });
}

/// Elements that `ordered_sum` adds sequentially before the blocks are added.
constexpr std::int64_t kOrderedSumBlock = 1024;

/// How rows are divided if each block makes a partial sum and these are added in block order. Depends only on
/// the shape, so that the sum is the same for any number of threads. At most 64 blocks, of at least 32 rows.
struct SumBlocks {
  std::int64_t rows = 0;   ///< rows per block
  std::int64_t count = 0;  ///< number of blocks
};
constexpr SumBlocks sum_blocks(std::int64_t rows) {
  const std::int64_t size = std::max<std::int64_t>(32, (rows + 63) / 64);
  return {size, (rows + size - 1) / size};
}

}  // namespace trainerd::kernels
