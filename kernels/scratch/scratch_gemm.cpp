#include "kernels/cpu/tiling/gemm.h"
#include "kernels/cpu/tiling/gemm_tiling.h"
#include "kernels/cuda/launch/scratch.h"
#include "kernels/memory/memory.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Copies of FP8 operands in the CPU's scratch (cpu/fp8.h).
template <class... Tensors>
std::int64_t copies(const Tensors&... operands) {
  return (align_up(operands.bytes()) + ...);
}
std::int64_t copies(const Tensor& x, const Weight& weight) {
  if (weight.format == GemmFormat::plain) return 0;
  return weight.prepared.defined() ? copies(x) : copies(x, weight.plain_NC);
}

/// Of all rows and one expert's weight.
std::int64_t expert_copies(GemmFormat format, const Tensor& rows, Tensor weight_NC, const Tensor& first_E) {
  if (format == GemmFormat::plain) return 0;
  weight_NC.shape.sizes[0] /= first_E.numel() - 1;
  return copies(rows, weight_NC);
}

}  // namespace

// Packing costs 0.1 ns per element, once per step. It saves 2 to 5% of each GEMM with 256-row blocks, and 15%
// with the smaller blocks of the fused operators. So it pays off from about a hundred tokens. Only whole
// panels are packed: oneDNN would zero padded ones again at every call.
std::int64_t prepared_bytes(const PrepareWeight& p, const Target& target) {
  if (target.kind == DeviceKind::cuda) return 0;
  const DType dtype = p.plain_NC.dtype;
  if (p.role == GemmRole::wgrad || widened(dtype, target)) return 0;
  if (target.isa < Isa::avx512 && !own_linear(dtype, target)) return 0;
  const std::int64_t N = p.plain_NC.size(0), C = p.plain_NC.size(1);
  const std::int64_t columns = p.role == GemmRole::fprop ? N : C, depth = p.role == GemmRole::fprop ? C : N;
  if (columns % 64 != 0 || depth % 32 != 0 || p.tokens < 128) return 0;
  if (by_amx(dtype, target) && p.plain_NC.bytes() > kAmxPreparedBytes) return 0;
  return p.plain_NC.bytes();
}

std::int64_t scratch_bytes(const PrepareWeight& p, const Target& target) {
  return p.format == GemmFormat::plain || prepared_bytes(p, target) == 0 ? 0 : copies(p.plain_NC);
}

std::int64_t scratch_bytes(const LinearFprop& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::gemm_scratch_bytes(a, target);
  return LinearScratch(shape_of(a), target).total() + copies(a.x_TC, a.weight);
}

std::int64_t scratch_bytes(const LinearDgrad& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::gemm_scratch_bytes(a, target);
  return LinearScratch(shape_of(a), target).total() + copies(a.dy_TN, a.weight);
}

std::int64_t scratch_bytes(const LinearWgrad& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::gemm_scratch_bytes(a, target);
  const std::int64_t operands = a.format == GemmFormat::plain ? 0 : copies(a.dy_TN, a.x_TC);
  return WgradScratch(a, target).total() + operands;
}

std::int64_t scratch_bytes(const LinearSwiglu& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::gemm_scratch_bytes(a, target);
  return LinearScratch(shape_of(fprop_of(a)), target).total() + copies(a.x_TC, a.weight);
}

std::int64_t scratch_bytes(const LinearDgradSwiglu& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::gemm_scratch_bytes(a, target);
  return DgradSwigluScratch(a, target).total() + copies(a.dy_TD, a.weight);
}

// On CPUs one expert after the other, of which one may have all rows.
std::int64_t scratch_bytes(const ExpertFprop& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  return LinearScratch({a.x_RC.dtype, a.x_RC.size(0), a.y_RN.size(1), a.x_RC.size(1), false}, target)
             .total() +
         expert_copies(a.format, a.x_RC, a.weight_NC, a.first_E);
}

std::int64_t scratch_bytes(const ExpertDgrad& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  return LinearScratch({a.dy_RN.dtype, a.dy_RN.size(0), a.dx_RC.size(1), a.dy_RN.size(1), false}, target)
             .total() +
         expert_copies(a.format, a.dy_RN, a.weight_NC, a.first_E);
}

std::int64_t scratch_bytes(const ExpertWgrad& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  LinearWgrad of_one{
      .dy_TN = a.dy_RN, .x_TC = a.x_RC, .dweight_NC = a.dweight_NC, .dbias_N = {}, .mode = a.mode};
  of_one.dweight_NC.shape.sizes[0] /= a.first_E.numel() - 1;
  return WgradScratch(of_one, target).total() + (a.format == GemmFormat::plain ? 0 : copies(a.dy_RN, a.x_RC));
}

}  // namespace trainerd::kernels
