#pragma once

#include <algorithm>
#include <cstdint>

namespace trainerd::kernels::cuda {

/// Number of blocks that hash a tensor; each writes two sums to scratch.
constexpr std::int64_t hash_blocks(std::int64_t bytes) {
  return std::clamp<std::int64_t>(bytes / (16 * 4096), 1, 1024);
}

}  // namespace trainerd::kernels::cuda
