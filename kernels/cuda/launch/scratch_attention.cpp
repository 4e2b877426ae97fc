#include <algorithm>

#include "kernels/cuda/launch/attention_problem.h"
#include "kernels/cuda/launch/scratch.h"
#include "kernels/target/cuda_limits.h"

namespace trainerd::kernels::cuda {
namespace {

/// Heads that no kernel supports are an error already when planning.
void check_heads(const HeadGeometry& heads) {
  const std::int64_t largest = std::max(heads.head_size, heads.values_size());
  if (largest > kLargestCudaHead)
    throw base::device_error("attention on CUDA takes heads of at most " + std::to_string(kLargestCudaHead) +
                             " elements, not " + std::to_string(largest) +
                             ": choose more heads, or device: cpu");
}

}  // namespace

std::int64_t attention_scratch_bytes(const AttentionForward& a, const Target& target) {
  check_heads(a.block.heads);
  return AttentionScratch(a, target).total;
}
std::int64_t attention_scratch_bytes(const AttentionBackward& a, const Target& target) {
  check_heads(a.block.heads);
  return AttentionScratch(a, target).total;
}

}  // namespace trainerd::kernels::cuda
