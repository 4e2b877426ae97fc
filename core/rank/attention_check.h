#pragma once

#include <string>

#include "core/job/job.h"
#include "core/rank/record.h"

namespace trainerd::core::rank {

/// Throws CapacityError if `attention.require` is `library` and a call of the recorded step would run by our
/// own kernels on a CUDA device. The message names the call and what would change it.
void require_attention(const job::JobSpec& job, const RankRecord& record);

/// "of 131072 tokens, with heads of 128".
std::string describe_attention(const kernels::OpClass& what);

}  // namespace trainerd::core::rank
