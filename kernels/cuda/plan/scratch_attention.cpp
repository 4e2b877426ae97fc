#include "kernels/cuda/plan/attention_problem.h"
#include "kernels/cuda/plan/scratch.h"

namespace trainerd::kernels::cuda {

std::int64_t attention_scratch_bytes(const AttentionForward& a, const Target& target) {
  return AttentionScratch(a, target).total;
}
std::int64_t attention_scratch_bytes(const AttentionBackward& a, const Target& target) {
  return AttentionScratch(a, target).total;
}

}  // namespace trainerd::kernels::cuda
