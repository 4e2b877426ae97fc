#include "kernels/cpu/tiling/blocks.h"
#include "kernels/cuda/launch/scratch.h"
#include "kernels/memory/memory.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

std::int64_t scratch_bytes(const EmbeddingBackward& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  // The end of each table row's tokens, and the tokens ordered by row: int32 each.
  return (a.dtable_VD.size(0) + a.rows_T.numel()) * 4;
}

std::int64_t scratch_bytes(const AddNormBackward& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  const std::int64_t sums = a.dbias_D.defined() ? 2 : 1;
  return sum_blocks(a.sum_TD.size(0)).count * sums * align_up(a.sum_TD.size(1) * 4);
}

std::int64_t scratch_bytes(const QkNormRopeBackward& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  if (!a.q_weight_E.defined()) return 0;
  const HeadGeometry& h = a.heads;
  return sum_blocks(a.dqkv.size(0)).count * (align_up(norm_elements(a.span, h.heads, h.head_size) * 4) +
                                             align_up(norm_elements(a.span, h.kv_heads, h.head_size) * 4));
}

// Sums of blocks, and one value computed from them.
std::int64_t scratch_bytes(const Normalise& a, const Target&) { return (norm_blocks(a.x.numel()) + 1) * 8; }

std::int64_t scratch_bytes(const OrderedSum& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::kernel_scratch_bytes(a, target);
  return (a.x.numel() + kOrderedSumBlock - 1) / kOrderedSumBlock * 8;
}

std::int64_t scratch_bytes(const TensorHash& a, const Target& target) {
  return target.kind == DeviceKind::cuda ? cuda::kernel_scratch_bytes(a, target) : 0;
}

std::int64_t scratch_bytes(const SortExperts& a, const Target& target) {
  return target.kind == DeviceKind::cuda ? cuda::kernel_scratch_bytes(a, target) : 0;
}

std::int64_t scratch_bytes(const ExpertBiasBackward& a, const Target& target) {
  return target.kind == DeviceKind::cuda ? cuda::kernel_scratch_bytes(a, target) : 0;
}

}  // namespace trainerd::kernels
