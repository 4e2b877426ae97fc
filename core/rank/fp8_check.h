#pragma once

#include "core/rank/record.h"
#include "kernels/target/target.h"

namespace trainerd::core::rank {

/// Throws CapacityError if the recorded step has a product in FP8 that a CUDA target does not run: only
/// Hopper has scales of blocks (cuda/gemm/gemm_library.h), and all sizes are multiples of 16. The message
/// says what would change it.
void require_fp8(const RankRecord& record, const kernels::Target& target);

}  // namespace trainerd::core::rank
