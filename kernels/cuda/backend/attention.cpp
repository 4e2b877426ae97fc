#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/cudnn/attention_library.h"
#include "kernels/cuda/launch/attention_problem.h"

namespace trainerd::kernels::cuda {
namespace {

/// The problem for all sequences and heads.
template <class Args>
AttentionProblem problem_of(const Args& a) {
  AttentionProblem p;
  p.causal = a.block.mask == MaskKind::causal;
  p.fp16 = a.q_THE.dtype == DType::f16;
  p.sequences = a.block.sequences;
  p.heads = a.block.heads.heads;
  p.kv_heads = a.block.heads.kv_heads;
  p.tokens = a.block.queries.max_seqlen;
  p.head_size = a.block.heads.head_size;
  p.value_size = a.block.heads.values_size();
  p.strides = {
      .q = a.q_THE.row_stride, .k = a.k_TKE.row_stride, .v = a.v_TKE.row_stride, .out = a.out_THE.row_stride};
  p.scale = a.block.scale;
  return p;
}

/// cuDNN accesses 16 bytes at a time. Addresses are unknown when the scratch is planned, so they are checked
/// here.
template <class... Views>
bool in_chunks(const Views&... views) {
  return ((reinterpret_cast<std::uintptr_t>(views.data) % 16 == 0) && ...);
}

/// The log-sum-exp in cuDNN's order [sequence, head, token]; ours is [head, sequence, token]. With one
/// sequence both are the same.
Tensor by_sequence(const Tensor& lse_HT, std::byte* scratch, std::int64_t sequences) {
  const std::int64_t heads = lse_HT.size(0), tokens = lse_HT.size(1) / sequences;
  return {sequences == 1 ? lse_HT.data : scratch, DType::f32, {sequences, heads, tokens}};
}

}  // namespace

void CudaBackend::attention_forward(Stream& stream, const AttentionForward& a) {
  check_args(a);
  if (a.q_THE.rows == 0) return;
  const ArenaScope scope(stream.scratch());
  const AttentionScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  const bool planned = plan.choice.kernel == AttentionKernel::library;
  if (planned && attention_ && in_chunks(a.q_THE, a.k_TKE, a.v_TKE, a.out_THE)) {
    const std::int64_t sequences = a.block.sequences;
    const Tensor stats = by_sequence(a.lse_HT, scratch, sequences);
    const AttentionPointers pointers{
        .q = a.q_THE.data, .k = a.k_TKE.data, .v = a.v_TKE.data, .out = a.out_THE.data, .stats = stats.data};
    if (attention_->run(launch.stream, problem_of(a), pointers, scratch + plan.workspace,
                        plan.choice.workspace)) {
      if (sequences > 1) swap_leading(launch, {.x_ABC = stats, .out_BAC = a.lse_HT});
      return;
    }
  }
  count_own_attention(planned);
  cuda::attention_forward(launch, a);
}

void CudaBackend::attention_backward(Stream& stream, const AttentionBackward& a) {
  check_args(a);
  if (a.q_THE.rows == 0 && a.k_TKE.rows == 0) return;
  const ArenaScope scope(stream.scratch());
  const AttentionScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  const bool planned = plan.choice.kernel == AttentionKernel::library;
  if (planned && attention_ &&
      in_chunks(a.q_THE, a.k_TKE, a.v_TKE, a.out_THE, a.dout_THE, a.dq_THE, a.dk_TKE, a.dv_TKE) &&
      run_library_backward(launch, a, plan))
    return;
  count_own_attention(planned);
  cuda::attention_backward(launch, a);
}

void CudaBackend::count_own_attention(bool planned_for_library) {
  ++counters_.own_attention;
  if (planned_for_library) ++counters_.attention_fallbacks;
}

// The pieces are independent: each reads its own heads and sequences and writes their complete gradients.
bool CudaBackend::run_library_backward(const Launch& launch, const AttentionBackward& a,
                                       const AttentionScratch& plan) {
  const AttentionPieces& pieces = plan.choice.pieces;
  const std::int64_t sequences = a.block.sequences, S = a.block.queries.max_seqlen, H = a.block.heads.heads,
                     K = a.block.heads.kv_heads, group = H / K;
  const Tensor stats = by_sequence(a.lse_HT, launch.scratch, sequences);
  if (sequences > 1) swap_leading(launch, {.x_ABC = a.lse_HT.reshaped({H, sequences, S}), .out_BAC = stats});
  AttentionProblem p = problem_of(a);
  p.backward = true;
  p.deterministic = a.determinism == Determinism::deterministic;
  p.strides.dout = a.dout_THE.row_stride;
  p.strides.dq = a.dq_THE.row_stride;
  p.strides.dk = a.dk_TKE.row_stride;
  p.strides.dv = a.dv_TKE.row_stride;
  for (std::int64_t b = 0; b < sequences; b += pieces.sequences)
    for (std::int64_t k = 0; k < K; k += pieces.kv_heads) {
      p.sequences = std::min(pieces.sequences, sequences - b);
      p.kv_heads = std::min(pieces.kv_heads, K - k);
      p.heads = p.kv_heads * group;
      // Address of the piece's first row and head.
      const auto at = [&](const HeadView& x, std::int64_t head) {
        return x.data + (b * S * x.row_stride + head * x.head_size) * size_of(x.dtype);
      };
      const AttentionPointers pointers{.q = at(a.q_THE, k * group),
                                       .k = at(a.k_TKE, k),
                                       .v = at(a.v_TKE, k),
                                       .out = at(a.out_THE, k * group),
                                       .stats = stats.data + (b * H + k * group) * S * 4,
                                       .dout = at(a.dout_THE, k * group),
                                       .dq = at(a.dq_THE, k * group),
                                       .dk = at(a.dk_TKE, k),
                                       .dv = at(a.dv_TKE, k)};
      if (!attention_->run(launch.stream, p, pointers, launch.scratch + plan.workspace,
                           plan.choice.workspace))
        return false;
    }
  return true;
}

}  // namespace trainerd::kernels::cuda
