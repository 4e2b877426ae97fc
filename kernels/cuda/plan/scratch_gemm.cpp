#include <algorithm>

#include "kernels/cuda/plan/gemm_problem.h"
#include "kernels/cuda/plan/scratch.h"

namespace trainerd::kernels::cuda {

std::int64_t gemm_scratch_bytes(const LinearFprop& a, const Target&) { return FpropScratch(a).total; }
std::int64_t gemm_scratch_bytes(const LinearDgrad&, const Target&) { return kGemmScratch; }
std::int64_t gemm_scratch_bytes(const LinearWgrad& a, const Target&) { return WgradScratch(a).total; }
std::int64_t gemm_scratch_bytes(const LinearSwiglu&, const Target&) { return kGemmScratch; }
std::int64_t gemm_scratch_bytes(const LinearDgradSwiglu& a, const Target&) {
  return DgradSwigluScratch(a).total;
}

}  // namespace trainerd::kernels::cuda
