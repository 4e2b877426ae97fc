#include <algorithm>

#include "kernels/cuda/launch/gemm_problem.h"
#include "kernels/cuda/launch/scratch.h"

namespace trainerd::kernels::cuda {

std::int64_t gemm_scratch_bytes(const LinearFprop& a, const Target& t) { return FpropScratch(a, t).total; }
std::int64_t gemm_scratch_bytes(const LinearDgrad& a, const Target& t) {
  return gemm_scratch(t) + fp8_bytes(a.dy_TN, a.weight);
}
std::int64_t gemm_scratch_bytes(const LinearWgrad& a, const Target& t) { return WgradScratch(a, t).total; }
std::int64_t gemm_scratch_bytes(const LinearSwiglu& a, const Target& t) {
  return gemm_scratch(t) + fp8_bytes(a.x_TC, a.weight);
}
std::int64_t gemm_scratch_bytes(const LinearDgradSwiglu& a, const Target& t) {
  return DgradSwigluScratch(a, t).total;
}

}  // namespace trainerd::kernels::cuda
