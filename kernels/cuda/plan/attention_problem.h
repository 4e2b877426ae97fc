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

/// Whether cuDNN is asked: bf16, sequences of one length, heads of a size its kernels know. What it then
/// refuses, and all else, our own kernels do.
template <class Args>
bool library_serves(const Args& a, const Target& target) {
  return !target.attention_library.empty() && a.qkv.dtype == DType::bf16 && a.sequences > 0 &&
         a.qkv.size(0) == a.sequences * a.max_seqlen && a.heads.head_size % 8 == 0 &&
         a.heads.head_size <= 128;
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
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t group = a.heads.heads / a.heads.kv_heads;
  const auto bytes = [&](std::int64_t sequences, std::int64_t kv_heads) {
    return backward_workspace(sequences, kv_heads * group, kv_heads, a.max_seqlen, a.heads.head_size,
                              a.determinism, target);
  };
  const auto even = [](std::int64_t all, std::int64_t most) {
    const std::int64_t pieces = (all + most - 1) / most;
    return (all + pieces - 1) / pieces;
  };
  AttentionPieces p{1, a.heads.kv_heads, 0};
  if (bytes(1, a.heads.kv_heads) <= kMost)
    p.sequences = even(a.sequences, std::max<std::int64_t>(1, kMost / bytes(1, a.heads.kv_heads)));
  else p.kv_heads = even(a.heads.kv_heads, std::max<std::int64_t>(1, kMost / bytes(1, 1)));
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
    workspace = row_bytes(a.heads, a.qkv.size(0));
    total = workspace + kForwardWorkspace;
  }
  AttentionScratch(const AttentionBackward& a, const Target& target) {
    workspace = total = row_bytes(a.heads, a.qkv.size(0));
    if (library_serves(a, target)) total += align_up(backward_pieces(a, target).workspace);
  }
};

}  // namespace trainerd::kernels::cuda
