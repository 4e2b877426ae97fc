#pragma once

// Layout of the sort in the embedding's backward. Host-only, because the planner uses it to size scratch.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/memory/memory.h"

namespace trainerd::kernels::cuda {

constexpr int kSortThreads = 256;
constexpr int kSortTile = 1024;  ///< tokens per block
constexpr int kSortDigits = 256;

/// A stable sort of `tokens` pairs (table row, token), 8 bits of the row per pass. Rows that are not held
/// count as row `held`.
struct SortLayout {
  std::int64_t tokens, tiles;
  int passes;
  std::int64_t column_bytes, counts_bytes;

  constexpr SortLayout(std::int64_t tokens_, std::int64_t held)
      : tokens(tokens_),
        tiles((tokens_ + kSortTile - 1) / kSortTile),
        passes(std::max(1, (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(held))) + 7) / 8)),
        column_bytes(align_up(tokens_ * 4)),
        counts_bytes(align_up(tiles * kSortDigits * 4)) {}
  /// Two columns of rows and two of tokens, read and written alternately, and the count of each digit per
  /// tile.
  constexpr std::int64_t bytes() const { return 4 * column_bytes + counts_bytes; }
};

}  // namespace trainerd::kernels::cuda
