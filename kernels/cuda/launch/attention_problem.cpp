#include "kernels/cuda/launch/attention_problem.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace trainerd::kernels::cuda {
namespace {

/// Workspace of a forward in the formula: plans of cuDNN 9.19 need 256 bytes at most.
constexpr std::int64_t kForwardWorkspace = std::int64_t{1} << 20;

/// The library runs one key head of one sequence up to this workspace, whatever the limit. 8192 tokens with
/// 16 query heads per key head need this much.
constexpr std::int64_t kOneHeadBytes = std::int64_t{4} << 30;

template <class Args, class... Outputs>
bool library_can(const Args& a, const Target& target, const Outputs&... outputs) {
  const AttentionBlock& b = a.block;
  const auto fits = [&](const HeadView& x) {
    return size_of(x.dtype) == 2 && x.dtype == a.q_THE.dtype && x.row_stride % 8 == 0;
  };
  return !target.attention_library.empty() && fits(a.q_THE) && fits(a.k_TKE) && fits(a.v_TKE) &&
         fits(a.out_THE) && (fits(outputs) && ...) && b.window == 0 && b.softcap == 0 && b.sequences > 0 &&
         b.queries.max_seqlen == b.keys.max_seqlen && b.queries.first == b.keys.first &&
         !b.queries.first_B.defined() && !b.keys.first_B.defined() &&
         a.q_THE.rows == b.sequences * b.queries.max_seqlen && a.k_TKE.rows == a.q_THE.rows &&
         b.heads.head_size % 8 == 0 && b.heads.values_size() % 8 == 0;
}

bool datacenter_blackwell(int sm_version) { return sm_version >= 100 && sm_version < 120; }

/// The call for this many sequences and key heads.
AttentionCall call_of(const AttentionBlock& b, DType dtype, std::int64_t sequences, std::int64_t kv_heads) {
  return {.causal = b.mask == MaskKind::causal,
          .fp16 = dtype == DType::f16,
          .sequences = sequences,
          .heads = kv_heads * (b.heads.heads / b.heads.kv_heads),
          .kv_heads = kv_heads,
          .tokens = b.queries.max_seqlen,
          .head_size = b.heads.head_size,
          .value_size = b.heads.values_size()};
}

AttentionCall backward_call(const AttentionBackward& a, std::int64_t sequences, std::int64_t kv_heads) {
  AttentionCall c = call_of(a.block, a.q_THE.dtype, sequences, kv_heads);
  c.backward = true;
  c.deterministic = a.determinism == Determinism::deterministic;
  return c;
}

/// Size of even pieces of `count`, none larger than `most`.
std::int64_t even(std::int64_t count, std::int64_t most) {
  const std::int64_t pieces = (count + most - 1) / most;
  return (count + pieces - 1) / pieces;
}

/// True if each piece's log-sum-exp begins at a multiple of 16 bytes, as the library expects.
bool pieces_aligned(const AttentionPieces& p, const AttentionBlock& b) {
  const auto is_aligned = [&](std::int64_t heads) { return heads * b.queries.max_seqlen * 4 % 16 == 0; };
  return (p.sequences == b.sequences || is_aligned(p.sequences * b.heads.heads)) &&
         (p.kv_heads == b.heads.kv_heads || is_aligned(p.kv_heads * (b.heads.heads / b.heads.kv_heads)));
}

/// The library's backward within the limit. The kernel is `plain` if the library has no plan for it or the
/// limit is too small.
AttentionChoice library_backward(const AttentionBackward& a, const Target& target) {
  const std::int64_t limit = target.attention_limit_bytes, all = a.block.sequences,
                     kv_heads = a.block.heads.kv_heads;
  const auto call = [&](std::int64_t sequences, std::int64_t heads) {
    return backward_call(a, sequences, heads);
  };
  const auto expected = [&](std::int64_t sequences, std::int64_t heads) {
    return backward_workspace(call(sequences, heads), target.sm_version);
  };
  // Maximum over the regular pieces and the last, smaller ones.
  const auto needed = [&](const AttentionPieces& p) {
    std::int64_t bytes = 0;
    for (const std::int64_t sequences : {p.sequences, all % p.sequences})
      for (const std::int64_t heads : {p.kv_heads, kv_heads % p.kv_heads}) {
        if (sequences == 0 || heads == 0) continue;
        const std::int64_t asked = library_workspace(call(sequences, heads), target);
        if (asked == kNoAttentionPlan) return kNoAttentionPlan;
        bytes = std::max(bytes, asked);
      }
    return bytes;
  };
  AttentionChoice choice{.pieces = {1, kv_heads}};
  AttentionPieces& p = choice.pieces;
  // Start from the formula, because only few sizes should be planned.
  if (expected(1, kv_heads) <= limit)
    p.sequences = even(all, std::max<std::int64_t>(1, limit / expected(1, kv_heads)));
  else p.kv_heads = even(kv_heads, std::max<std::int64_t>(1, limit / expected(1, 1)));
  for (;;) {
    choice.limited = p.sequences < all || p.kv_heads < kv_heads;
    choice.workspace = needed(p);
    if (choice.workspace == kNoAttentionPlan) return {};
    if (choice.workspace <= limit) break;
    if (p.sequences > 1) p.sequences = even(all, p.sequences / 2);
    else if (p.kv_heads > 1) p.kv_heads = even(kv_heads, p.kv_heads / 2);
    else if (choice.workspace <= kOneHeadBytes) break;
    else return {.limited = true};
  }
  if (!pieces_aligned(p, a.block)) return {.limited = true};
  choice.kernel = AttentionKernel::library;
  return choice;
}

}  // namespace

std::int64_t backward_workspace(const AttentionCall& c, int sm_version) {
  constexpr std::int64_t kSlack = 4096;
  const std::int64_t rows = c.sequences * c.heads * align_up(c.tokens, 128), fp32 = 4 * rows * c.head_size;
  std::int64_t bytes = 4 * rows + kSlack;
  // dK and dV of each query head, in bf16
  if (c.heads != c.kv_heads) bytes += 2 * rows * (c.head_size + c.value_size);
  if (c.deterministic && !datacenter_blackwell(sm_version)) return bytes + 2 * rows * align_up(c.tokens, 128);
  return bytes + (sm_version == 90 || datacenter_blackwell(sm_version) ? fp32 : 2 * fp32);
}

std::int64_t backward_workspace(const AttentionBackward& a, const Target& target) {
  return backward_workspace(backward_call(a, a.block.sequences, a.block.heads.kv_heads), target.sm_version);
}

// The call itself is planned again with its own strides, and may need slightly more.
constexpr std::int64_t kPlanSlack = std::int64_t{1} << 20;

std::int64_t library_workspace(const AttentionCall& c, const Target& target) {
  if (target.attention_workspace != nullptr)
    if (const std::int64_t planned = target.attention_workspace(target, c); planned != kUnknownAttentionPlan)
      return planned == kNoAttentionPlan ? planned : planned + kPlanSlack;
  const std::int64_t largest = !c.backward || target.sm_version == 90 ? 256 : 128;
  // DeepSeek's heads, which data center Blackwell has a kernel for.
  const bool of_deepseek =
      datacenter_blackwell(target.sm_version) && c.head_size == 192 && c.value_size == 128;
  if (std::max(c.head_size, c.value_size) > largest && !of_deepseek) return kNoAttentionPlan;
  return c.backward ? backward_workspace(c, target.sm_version) : kForwardWorkspace;
}

AttentionChoice choose_attention(const AttentionForward& a, const Target& target) {
  if (a.mode == WriteMode::assign && library_can(a, target)) {
    const std::int64_t workspace =
        library_workspace(call_of(a.block, a.q_THE.dtype, a.block.sequences, a.block.heads.kv_heads), target);
    if (workspace != kNoAttentionPlan) return {.kernel = AttentionKernel::library, .workspace = workspace};
  }
  return {.kernel = tensor_cores_serve(a, target) ? AttentionKernel::tensor_cores : AttentionKernel::plain};
}

AttentionChoice choose_attention(const AttentionBackward& a, const Target& target) {
  AttentionChoice choice;
  if (a.dq_mode == WriteMode::assign && a.dkv_mode == WriteMode::assign &&
      library_can(a, target, a.dout_THE, a.dq_THE, a.dk_TKE, a.dv_TKE))
    choice = library_backward(a, target);
  if (choice.kernel != AttentionKernel::library &&
      tensor_cores_serve(a, target, a.dout_THE, a.dq_THE, a.dk_TKE, a.dv_TKE))
    choice.kernel = AttentionKernel::tensor_cores;
  return choice;
}

}  // namespace trainerd::kernels::cuda
