#pragma once

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/launch/embedding_launch.h"

namespace trainerd::kernels::cuda {

/// Table rows in rising order and their tokens; tokens of equal rows are in rising order. Stored in the
/// call's scratch.
struct SortedTokens {
  const std::int32_t* rows;
  const std::int32_t* tokens;
};
SortedTokens sort_tokens(const Launch&, const std::int32_t* ids, std::int64_t first_row, std::int64_t held,
                         const SortLayout& plan);

}  // namespace trainerd::kernels::cuda
