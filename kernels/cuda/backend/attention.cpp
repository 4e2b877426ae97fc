#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/cudnn/attention_library.h"
#include "kernels/cuda/plan/attention_problem.h"

namespace trainerd::kernels::cuda {
namespace {

template <class Args>
void check_args(const Args& a) {
  base::check(a.heads.kv_heads > 0 && a.heads.heads % a.heads.kv_heads == 0,
              "attention: query heads are a multiple of the key heads");
  base::check(a.cu_seqlens.numel() == a.sequences + 1, "attention: one more bound than sequences");
  base::check(a.qkv.size(1) == a.heads.columns() && a.out_THE.size(1) == a.heads.heads * a.heads.head_size,
              "attention: columns of the merged projection and of the output");
  base::check(a.out_THE.dtype == a.qkv.dtype, "attention: activations are of one dtype");
  base::check(a.lse_HT.shape == Shape{a.heads.heads, a.qkv.size(0)},
              "attention: a log-sum-exp for each head and token");
}

template <class Args>
AttentionProblem problem_of(const Args& a) {
  AttentionProblem p;
  p.causal = a.mask == MaskKind::causal;
  p.sequences = a.sequences;
  p.heads = a.heads.heads;
  p.kv_heads = a.heads.kv_heads;
  p.tokens = a.max_seqlen;
  p.head_size = a.heads.head_size;
  p.qkv_columns = a.heads.columns();
  p.out_columns = a.heads.heads * a.heads.head_size;
  p.scale = a.scale;
  return p;
}

/// The same numbers by [sequence, head, token], as cuDNN has them, and by [head, sequence, token]: with one
/// sequence no difference.
Tensor by_sequence(const Tensor& lse_HT, std::byte* scratch, std::int64_t sequences) {
  const std::int64_t heads = lse_HT.size(0), tokens = lse_HT.size(1) / sequences;
  return {sequences == 1 ? lse_HT.data : scratch, DType::f32, {sequences, heads, tokens}};
}

}  // namespace

void CudaBackend::attention_forward(Stream& stream, const AttentionForward& a) {
  check_args(a);
  if (a.qkv.size(0) == 0) return;
  const ArenaScope scope(stream.scratch());
  const AttentionScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  if (attention_ && library_serves(a, target_)) {
    const Tensor stats = by_sequence(a.lse_HT, scratch, a.sequences);
    const std::int64_t E2 = a.heads.head_size * 2;  // bytes of a head
    const AttentionPointers pointers{.q = a.qkv.data,
                                     .k = a.qkv.data + a.heads.heads * E2,
                                     .v = a.qkv.data + (a.heads.heads + a.heads.kv_heads) * E2,
                                     .out = a.out_THE.data,
                                     .stats = stats.data};
    if (attention_->run(launch.stream, problem_of(a), pointers, scratch + plan.workspace,
                        kForwardWorkspace)) {
      if (a.sequences > 1) swap_leading(launch, {.x_ABC = stats, .out_BAC = a.lse_HT});
      return;
    }
  }
  ++counters_.own_attention;
  cuda::attention_forward(launch, a);
}

void CudaBackend::attention_backward(Stream& stream, const AttentionBackward& a) {
  check_args(a);
  base::check(a.dout_THE.dtype == a.qkv.dtype && a.dqkv.dtype == a.qkv.dtype,
              "attention: activations are of one dtype");
  base::check(a.dout_THE.shape == a.out_THE.shape && a.dqkv.shape == a.qkv.shape,
              "attention: gradients are like what they are of");
  if (a.qkv.size(0) == 0) return;
  const ArenaScope scope(stream.scratch());
  std::byte* scratch = take_scratch(stream, a);
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  if (attention_ && library_serves(a, target_) && run_library_backward(launch, a)) return;
  ++counters_.own_attention;
  cuda::attention_backward(launch, a);
}

// The pieces are independent of each other: each reads its own heads and sequences and writes their gradients
// whole.
bool CudaBackend::run_library_backward(const Launch& launch, const AttentionBackward& a) {
  const AttentionScratch plan(a, target_);
  const AttentionPieces pieces = backward_pieces(a, target_);
  const std::int64_t S = a.max_seqlen, H = a.heads.heads, K = a.heads.kv_heads, group = H / K,
                     E2 = a.heads.head_size * 2;
  const Tensor stats = by_sequence(a.lse_HT, launch.scratch, a.sequences);
  if (a.sequences > 1)
    swap_leading(launch, {.x_ABC = a.lse_HT.reshaped({H, a.sequences, S}), .out_BAC = stats});
  for (std::int64_t b = 0; b < a.sequences; b += pieces.sequences)
    for (std::int64_t k = 0; k < K; k += pieces.kv_heads) {
      AttentionProblem p = problem_of(a);
      p.backward = true;
      p.deterministic = a.determinism == Determinism::deterministic;
      p.sequences = std::min(pieces.sequences, a.sequences - b);
      p.kv_heads = std::min(pieces.kv_heads, K - k);
      p.heads = p.kv_heads * group;
      // Offsets in bytes of the piece's first query, key and value heads, and of its rows of the output.
      const std::int64_t row = b * S * p.qkv_columns * 2, q = row + k * group * E2, key = row + (H + k) * E2,
                         value = row + (H + K + k) * E2, out = b * S * p.out_columns * 2 + k * group * E2;
      const AttentionPointers pointers{.q = a.qkv.data + q,
                                       .k = a.qkv.data + key,
                                       .v = a.qkv.data + value,
                                       .out = a.out_THE.data + out,
                                       .stats = stats.data + (b * H + k * group) * S * 4,
                                       .dout = a.dout_THE.data + out,
                                       .dq = a.dqkv.data + q,
                                       .dk = a.dqkv.data + key,
                                       .dv = a.dqkv.data + value};
      if (!attention_->run(launch.stream, p, pointers, launch.scratch + plan.workspace, pieces.workspace))
        return false;
    }
  return true;
}

}  // namespace trainerd::kernels::cuda
