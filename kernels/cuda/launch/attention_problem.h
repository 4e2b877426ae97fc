#pragma once

// How attention runs on a CUDA device, by shapes and the target alone: by cuDNN or by our own kernels, in
// what pieces, and with how much scratch. Shared by the operators (backend/attention.cpp), their scratch
// (scratch_attention.cpp) and their cost (kernels/cost).

#include <cstdint>

#include "kernels/memory/memory.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// The largest head that our own kernels on tensor cores take.
constexpr std::int64_t kLargestTensorCoreHead = 128;

/// Whether heads lie in chunks of 16 bytes, if their memory begins at one.
inline bool rows_in_chunks(const HeadView& x) { return x.row_stride * size_of(x.dtype) % 16 == 0; }

/// Whether our own kernels on tensor cores take a call: bf16, heads of whole 16-byte chunks.
template <class Args, class... Outputs>
bool tensor_cores_serve(const Args& a, const Target& target, const Outputs&... outputs) {
  return target.sm_version >= 80 && a.q_THE.dtype == DType::bf16 && a.block.scale > 0.0f &&
         a.block.heads.head_size % 8 == 0 && a.block.heads.head_size <= kLargestTensorCoreHead &&
         rows_in_chunks(a.q_THE) && rows_in_chunks(a.k_TKE) && rows_in_chunks(a.v_TKE) &&
         rows_in_chunks(a.out_THE) && (rows_in_chunks(outputs) && ...);
}

/// cuDNN's workspace that one call of the backward takes, as its plans ask for on each architecture (measured
/// over plans of cuDNN 9.19 by tests/kernels/cuda/cudnn_plans_test.cpp). With b sequences of s tokens, h
/// heads of size d:
///   deterministic, before Blackwell's data center parts (sm_100): the scores' gradient in bf16, 2bh s^2, s
///   rounded up to 128 otherwise: dQ in fp32, 4bhsd, twice that on sm_80 and sm_120 and with grouped heads dK
///   and dV of each query head in bf16, 4bhsd; the row sums of dO O, 4bhs; a few bytes.
std::int64_t backward_workspace(const AttentionCall& call, int sm_version);

/// The same of a whole backward, whatever pieces it goes in. The library writes and reads each of them once
/// at least.
std::int64_t backward_workspace(const AttentionBackward&, const Target&);

/// Workspace bytes of a call, or kNoAttentionPlan: by the plans of the library that is installed, where the
/// target has it at hand. Else by the formula and by what cuDNN 9.19 has plans for: heads of at most 256 in
/// the forward and, on sm_90, in the backward, 128 in the other backwards.
std::int64_t library_workspace(const AttentionCall& call, const Target& target);

/// The pieces of one backward: so many sequences and key heads (with their query heads) a call. The last may
/// be smaller.
struct AttentionPieces {
  std::int64_t sequences = 0;
  std::int64_t kv_heads = 0;
};

/// What runs a call. `workspace` is the library's, of the largest piece.
struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::plain;
  bool limited = false;         ///< as in OpClass
  AttentionPieces pieces = {};  ///< of a backward by the library
  std::int64_t workspace = 0;
};

/// The library, where it can be asked of a call (bf16 throughout, whole sequences of one length, each against
/// itself, that fill the rows of both sides, from one position on; causal or unmasked, assigned, in rows of
/// 16-byte chunks) and has a plan for it. Our own kernels do all else: packed documents, blocks at other
/// positions, windows, softcaps, merges, outputs in fp32.
///
/// A backward goes in pieces whose workspace stays within the target's limit: whole sequences, or one
/// sequence at a time and as many key heads as fit. Where one key head of one sequence is above the limit and
/// above 4 GiB, as with the deterministic backward of long sequences, whose workspace grows with the square
/// of the length, our own kernels run it: their scratch is a number for each row.
AttentionChoice choose_attention(const AttentionForward&, const Target&);
AttentionChoice choose_attention(const AttentionBackward&, const Target&);

/// One number a head and token: cuDNN's log-sum-exp lies by sequence, ours by head; and the row sums of our
/// own backward.
inline std::int64_t row_bytes(const HeadGeometry& heads, std::int64_t tokens) {
  return align_up(heads.heads * tokens * 4);
}

/// Scratch: [a number a row | workspace].
struct AttentionScratch {
  AttentionChoice choice;
  std::int64_t workspace = 0, total = 0;  ///< where it begins; all bytes
  AttentionScratch(const AttentionForward& a, const Target& target) : choice(choose_attention(a, target)) {
    if (choice.kernel != AttentionKernel::library) return;
    workspace = row_bytes(a.block.heads, a.q_THE.rows);
    total = workspace + align_up(choice.workspace);
  }
  AttentionScratch(const AttentionBackward& a, const Target& target) : choice(choose_attention(a, target)) {
    workspace = total = row_bytes(a.block.heads, a.q_THE.rows);
    if (choice.kernel == AttentionKernel::library) total += align_up(choice.workspace);
  }
};

}  // namespace trainerd::kernels::cuda
