#pragma once

#include <string>

#include "core/job/job.h"
#include "core/rank/record.h"

namespace trainerd::core::rank {

/// Throws CapacityError where the job's `attention.require` is `library` and a call of the recorded step runs
/// by our own kernels on a CUDA device: which, and what would change it.
void require_attention(const job::JobSpec& job, const RankRecord& record);

/// "of 131072 tokens, with heads of 128".
std::string describe_attention(const kernels::OpClass& what);

}  // namespace trainerd::core::rank
