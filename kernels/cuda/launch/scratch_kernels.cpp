#include "kernels/cuda/launch/embedding_launch.h"
#include "kernels/cuda/launch/fp8_operand.h"
#include "kernels/cuda/launch/hash_launch.h"
#include "kernels/cuda/launch/partials.h"
#include "kernels/cuda/launch/scratch.h"

namespace trainerd::kernels::cuda {

std::int64_t kernel_scratch_bytes(const EmbeddingBackward& a, const Target&) {
  return SortLayout(a.rows_T.numel(), a.dtable_VD.size(0)).bytes();
}

std::int64_t kernel_scratch_bytes(const AddNormBackward& a, const Target&) {
  return (a.dbias_D.defined() ? 2 : 1) * partial_bytes(a.sum_TD.size(0), a.sum_TD.size(1));
}

std::int64_t kernel_scratch_bytes(const QkNormRopeBackward& a, const Target&) {
  if (!a.q_weight_E.defined()) return 0;
  const HeadGeometry& h = a.heads;
  return partial_bytes(a.dqkv.size(0), norm_elements(a.span, h.heads, h.head_size)) +
         partial_bytes(a.dqkv.size(0), norm_elements(a.span, h.kv_heads, h.head_size));
}

std::int64_t kernel_scratch_bytes(const OrderedSum& a, const Target&) {
  return (a.x.numel() + 1023) / 1024 * 8;
}

std::int64_t kernel_scratch_bytes(const SortExperts& a, const Target&) {
  return SortLayout(a.expert_TK.numel(), a.first_E.numel() - 1).bytes();
}

std::int64_t kernel_scratch_bytes(const ExpertBiasBackward& a, const Target&) {
  if (!a.dbias_EN.defined()) return 0;
  return expert_parts(a.first_E.numel() - 1) * partial_stride(a.dbias_EN.numel()) * 4;
}

std::int64_t kernel_scratch_bytes(const ExpertFprop& a, const Target&) {
  return a.format == GemmFormat::plain ? 0 : ExpertRowsScratch(a.x_RC, a.weight_NC, false).total;
}

std::int64_t kernel_scratch_bytes(const ExpertDgrad& a, const Target&) {
  return a.format == GemmFormat::plain ? 0 : ExpertRowsScratch(a.dy_RN, a.weight_NC, true).total;
}

std::int64_t kernel_scratch_bytes(const ExpertWgrad& a, const Target&) {
  return a.format == GemmFormat::plain ? 0 : ExpertWgradScratch(a.dy_RN, a.x_RC, a.first_E).total;
}

std::int64_t kernel_scratch_bytes(const TensorHash& a, const Target&) { return hash_blocks(a.x.bytes()) * 8; }

}  // namespace trainerd::kernels::cuda
