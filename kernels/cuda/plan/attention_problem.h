#pragma once

// How attention runs on a CUDA device, by shapes and the target alone: whether cuDNN serves it, in what
// pieces, and with how much scratch. Shared by the operators (attention.cpp) and the planner
// (scratch_attention.cpp).

#include <algorithm>
#include <cstdint>

#include "kernels/memory/memory.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// Whether cuDNN can be asked of a call: bf16 throughout, whole sequences of one length, each against itself
/// (the rows of both sides are full of sequences of `max_seqlen`, from one position on), causal or unmasked,
/// assigned, in heads of a size its kernels know and rows of 16-byte chunks. What it then refuses, and all
/// else (packed documents, blocks at other positions, windows, softcaps, merges, outputs in fp32), our own
/// kernels do.
template <class Args, class... Outputs>
bool library_can(const Args& a, const Target& target, const Outputs&... outputs) {
  const AttentionBlock& b = a.block;
  const auto fits = [](const HeadView& x) { return x.dtype == DType::bf16 && x.row_stride % 8 == 0; };
  return !target.attention_library.empty() && fits(a.q_THE) && fits(a.k_TKE) && fits(a.v_TKE) &&
         fits(a.out_THE) && (fits(outputs) && ...) && b.window == 0 && b.softcap == 0 && b.sequences > 0 &&
         b.queries.max_seqlen == b.keys.max_seqlen && b.queries.first == b.keys.first &&
         !b.queries.first_B.defined() && !b.keys.first_B.defined() &&
         a.q_THE.rows == b.sequences * b.queries.max_seqlen && a.k_TKE.rows == a.q_THE.rows &&
         b.heads.head_size % 8 == 0 && b.heads.head_size <= 128;
}
inline bool library_serves(const AttentionForward& a, const Target& target) {
  return a.mode == WriteMode::assign && library_can(a, target);
}
inline bool library_serves(const AttentionBackward& a, const Target& target) {
  return a.dq_mode == WriteMode::assign && a.dkv_mode == WriteMode::assign &&
         library_can(a, target, a.dout_THE, a.dq_THE, a.dk_TKE, a.dv_TKE);
}

/// cuDNN's workspace that one call of the backward takes, as its plans ask for on each architecture (measured
/// over plans of cuDNN 9.19 by tests/kernels/cuda/cudnn_plans_test.cpp). With b sequences of s tokens, h
/// heads of size d:
///   deterministic, before Blackwell's data center parts (sm_100): the scores' gradient in bf16, 2bh s^2, s
///   rounded up to 128 otherwise: dQ in fp32, 4bhsd, twice that on sm_80 and sm_120 and with grouped heads dK
///   and dV of each query head in bf16, 4bhsd; the row sums of dO O, 4bhs; a few bytes.
inline std::int64_t backward_workspace(std::int64_t b, std::int64_t h, std::int64_t kv_heads, std::int64_t s,
                                       std::int64_t d, Determinism determinism, const Target& target) {
  constexpr std::int64_t kSlack = 4096;
  const bool datacenter_blackwell = target.sm_version >= 100 && target.sm_version < 120;
  const std::int64_t rows = align_up(s, 128), fp32 = 4 * b * h * rows * d;
  std::int64_t bytes = 4 * b * h * rows + kSlack;
  if (h != kv_heads) bytes += fp32;
  if (determinism == Determinism::deterministic && !datacenter_blackwell)
    return bytes + 2 * b * h * rows * rows;
  return bytes + (target.sm_version == 90 || datacenter_blackwell ? fp32 : 2 * fp32);
}

/// The pieces of one backward: so many sequences and key heads (with their query heads) a call. The last may
/// be smaller.
struct AttentionPieces {
  std::int64_t sequences = 0;
  std::int64_t kv_heads = 0;
  std::int64_t workspace = 0;  ///< bytes that the largest piece may take
};

/// Whole sequences while their workspace stays within 1 GiB, else one sequence at a time and as many key
/// heads as fit.
inline AttentionPieces backward_pieces(const AttentionBackward& a, const Target& target) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;
  const HeadGeometry& heads = a.block.heads;
  const std::int64_t group = heads.heads / heads.kv_heads, all = a.block.sequences;
  const auto bytes = [&](std::int64_t sequences, std::int64_t kv_heads) {
    return backward_workspace(sequences, kv_heads * group, kv_heads, a.block.queries.max_seqlen,
                              heads.head_size, a.determinism, target);
  };
  const auto even = [](std::int64_t count, std::int64_t most) {
    const std::int64_t pieces = (count + most - 1) / most;
    return (count + pieces - 1) / pieces;
  };
  AttentionPieces p{1, heads.kv_heads, 0};
  if (bytes(1, heads.kv_heads) <= kMaxBytes)
    p.sequences = even(all, std::max<std::int64_t>(1, kMaxBytes / bytes(1, heads.kv_heads)));
  else p.kv_heads = even(heads.kv_heads, std::max<std::int64_t>(1, kMaxBytes / bytes(1, 1)));
  p.workspace = bytes(p.sequences, p.kv_heads);
  return p;
}

/// One number a head and token: cuDNN's log-sum-exp lies by sequence, ours by head; and the row sums of our
/// own backward.
inline std::int64_t row_bytes(const HeadGeometry& heads, std::int64_t tokens) {
  return align_up(heads.heads * tokens * 4);
}

constexpr std::int64_t kForwardWorkspace = std::int64_t{1} << 20;  // plans ask for 256 bytes at most

/// Scratch: [a number a row | workspace].
struct AttentionScratch {
  std::int64_t workspace = 0, total = 0;
  AttentionScratch(const AttentionForward& a, const Target& target) {
    if (!library_serves(a, target)) return;
    workspace = row_bytes(a.block.heads, a.q_THE.rows);
    total = workspace + kForwardWorkspace;
  }
  AttentionScratch(const AttentionBackward& a, const Target& target) {
    workspace = total = row_bytes(a.block.heads, a.q_THE.rows);
    if (library_serves(a, target)) total += align_up(backward_pieces(a, target).workspace);
  }
};

}  // namespace trainerd::kernels::cuda
