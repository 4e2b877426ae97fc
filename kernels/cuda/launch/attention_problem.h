#pragma once

// How attention runs on a CUDA device, determined by shapes and the target: with cuDNN or our own kernels, in
// which pieces, and with how much scratch. Shared by the operators (backend/attention.cpp), their scratch
// (scratch_attention.cpp) and their cost (kernels/cost).

#include <cstdint>

#include "kernels/memory/memory.h"
#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// Maximum head size of our own kernels on tensor cores.
constexpr std::int64_t kLargestTensorCoreHead = 128;

/// True if rows consist of 16-byte chunks, provided that the memory begins at a 16-byte boundary.
inline bool rows_in_chunks(const HeadView& x) { return x.row_stride * size_of(x.dtype) % 16 == 0; }

/// True if they support a head of this size.
inline bool serves_head(std::int64_t size) { return size % 8 == 0 && size <= kLargestTensorCoreHead; }

/// True if our own kernels on tensor cores support a call: bf16 or fp16, heads of whole 16-byte chunks.
template <class Args, class... Outputs>
bool tensor_cores_serve(const Args& a, const Target& target, const Outputs&... outputs) {
  return target.sm_version >= 80 && size_of(a.q_THE.dtype) == 2 && a.block.scale > 0.0f &&
         serves_head(a.block.heads.head_size) && serves_head(a.block.heads.values_size()) &&
         rows_in_chunks(a.q_THE) && rows_in_chunks(a.k_TKE) && rows_in_chunks(a.v_TKE) &&
         rows_in_chunks(a.out_THE) && (rows_in_chunks(outputs) && ...);
}

/// Tiles of rows of our own kernels, one block each per head. They begin with each sequence, and are numbered
/// for all sequences together. Each sequence has `even` numbers; or, with 0, sequence b has those from
/// cu_seqlens[b] / tile_rows + b on. The latter are at least as many as it has tiles, and in all at most one
/// per sequence more, whatever the lengths of packed documents are.
struct AttentionTiles {
  std::int64_t even = 0, all = 0;
};
constexpr AttentionTiles attention_tiles(std::int64_t sequences, std::int64_t rows, std::int64_t longest,
                                         std::int64_t tile_rows) {
  const std::int64_t of_longest = (longest + tile_rows - 1) / tile_rows, even = of_longest * sequences,
                     packed = rows / tile_rows + sequences;
  return even <= packed ? AttentionTiles{of_longest, even} : AttentionTiles{0, packed};
}

/// cuDNN's workspace for one call of the backward, as its plans require on each architecture (measured over
/// plans of cuDNN 9.19 by tests/kernels/cuda/cudnn_plans_test.cpp). With b sequences of s tokens, h heads of
/// size d:
/// - deterministic, before Blackwell's data center parts (sm_100): the scores' gradient in bf16, 2bh s^2,
///   with s rounded up to 128;
/// - otherwise dQ in fp32, 4bhsd, or twice that except on sm_90 and sm_100;
/// - with grouped heads also dK and dV of each query head in bf16, 4bhsd, or 2bhs(d + e) with value heads of
///   size e;
/// - always the row sums of dO O, 4bhs, and a few bytes.
std::int64_t backward_workspace(const AttentionCall& call, int sm_version);

/// The same for a whole backward, whatever its pieces are. The library writes and reads each byte at least
/// once.
std::int64_t backward_workspace(const AttentionBackward&, const Target&);

/// Workspace bytes of a call, or kNoAttentionPlan, according to the plans of the installed library if the
/// target has it. Otherwise by the formula, for the head sizes that cuDNN 9.19 has plans for: at most 256 in
/// the forward and, on sm_90, in the backward, and 128 in other backwards, but for DeepSeek's heads (192,
/// values 128) on data center Blackwell.
std::int64_t library_workspace(const AttentionCall& call, const Target& target);

/// The pieces of one backward: sequences and key heads (with their query heads) per call. The last piece may
/// be smaller.
struct AttentionPieces {
  std::int64_t sequences = 0;
  std::int64_t kv_heads = 0;
};

/// The kernel that runs a call. `workspace` is the library's, for the largest piece.
struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::plain;
  bool limited = false;         ///< as in OpClass
  AttentionPieces pieces = {};  ///< of a library backward
  std::int64_t workspace = 0;
};

/// Chooses the library if the call has the form it supports and it has a plan. That form is: bf16 or fp16
/// throughout; whole sequences of one length, each attending to itself, that fill the rows of both sides and
/// start at one position; causal or unmasked; assigned; rows of 16-byte chunks. Our own kernels do everything
/// else: packed documents, blocks at other positions, windows, softcaps, merges, fp32 outputs.
///
/// A backward runs in pieces whose workspace stays within the target's limit: whole sequences, or one
/// sequence at a time with as many key heads as fit. If one key head of one sequence exceeds both the limit
/// and 4 GiB, our own kernels run it, with scratch of one number per row. That happens with the deterministic
/// backward of long sequences, whose workspace grows with the square of the length. The same where a piece's
/// log-sum-exp would not begin at a multiple of 16 bytes (a length that is no multiple of 4).
AttentionChoice choose_attention(const AttentionForward&, const Target&);
AttentionChoice choose_attention(const AttentionBackward&, const Target&);

/// Bytes of one number per head and token. Used for cuDNN's log-sum-exp, which is stored by sequence where
/// ours is stored by head, and for the row sums of our own backward.
inline std::int64_t row_bytes(const HeadGeometry& heads, std::int64_t tokens) {
  return align_up(heads.heads * tokens * 4);
}

/// Scratch: [one number per row | workspace].
struct AttentionScratch {
  AttentionChoice choice;
  std::int64_t workspace = 0, total = 0;  ///< offset of the workspace; total bytes
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
