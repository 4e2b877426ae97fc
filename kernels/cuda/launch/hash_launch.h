#pragma once

#include <algorithm>
#include <cstdint>

namespace trainerd::kernels::cuda {

/// Blocks that hash a tensor: each leaves two sums in the scratch.
constexpr std::int64_t hash_blocks(std::int64_t bytes) {
  return std::clamp<std::int64_t>(bytes / (16 * 4096), 1, 1024);
}

}  // namespace trainerd::kernels::cuda
