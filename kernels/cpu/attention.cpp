#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/attention_tiling.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Bounds and first positions of the queries or of the keys, read at the call.
struct Sequences {
  const std::int32_t* bounds;
  const std::int32_t* first_B;
  std::int64_t first;

  Sequences(const AttentionRows& x, std::int64_t sequences, std::int64_t rows)
      : bounds(x.cu_seqlens.as<std::int32_t>()),
        first_B(x.first_B.defined() ? x.first_B.as<std::int32_t>() : nullptr),
        first(x.first) {
    base::check(bounds[0] == 0 && bounds[sequences] == rows, "attention: the sequences are all rows");
    for (std::int64_t b = 0; b < sequences; ++b)
      base::check(length(b) >= 0 && length(b) <= x.max_seqlen,
                  "attention: a sequence is longer than max_seqlen, or its bounds decrease");
  }
  /// Number of sequences without the empty ones at the end.
  std::int64_t filled(std::int64_t sequences) const {
    while (sequences > 0 && length(sequences - 1) == 0) --sequences;
    return sequences;
  }
  std::int64_t length(std::int64_t b) const { return bounds[b + 1] - bounds[b]; }
  std::int64_t position(std::int64_t b) const { return first + (first_B != nullptr ? first_B[b] : 0); }
};

/// Runs `run(args, unit, scratch)` for every sequence and key/value head, each on one thread.
template <class Args>
void for_each_unit(base::ThreadPool& pool, const Args& a, AttentionPass pass, std::byte* memory,
                   void (*run)(const Args&, const AttentionUnit&, const AttentionScratch&)) {
  const AttentionBlock& block = a.block;
  const std::int64_t heads = block.heads.kv_heads;
  const Sequences queries(block.queries, block.sequences, a.q_THE.rows),
      keys(block.keys, block.sequences, a.k_TKE.rows);
  const std::int64_t filled = std::max(queries.filled(block.sequences), keys.filled(block.sequences));
  pool.run(filled * heads, [&](std::int64_t i, int thread) {
    const std::int64_t b = i / heads;
    const auto lay_out = [&](std::byte* base, AttentionScratch& scratch) {
      return lay_out_attention(pass, a.q_THE.dtype, block.keys.max_seqlen, block.heads, base, scratch);
    };
    AttentionScratch scratch;
    const std::int64_t bytes = lay_out(nullptr, scratch);
    lay_out(memory + thread * bytes, scratch);
    run(a,
        {.first_query = queries.bounds[b],
         .queries = queries.length(b),
         .first_key = keys.bounds[b],
         .keys = keys.length(b),
         .offset = queries.position(b) - keys.position(b),
         .kv_head = i % heads},
        scratch);
  });
}

}  // namespace

void CpuBackend::attention_forward(Stream& stream, const AttentionForward& args) {
  check_args(args);
  const ArenaScope scope(stream.scratch());
  std::byte* memory = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  for_each_unit(pool_, args, AttentionPass::forward, memory, attention_.forward);
}

void CpuBackend::attention_backward(Stream& stream, const AttentionBackward& args) {
  check_args(args);
  const ArenaScope scope(stream.scratch());
  std::byte* memory = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  for_each_unit(pool_, args, AttentionPass::backward, memory, attention_.backward);
}

void CpuBackend::attention_sink_forward(Stream&, const AttentionSinkForward& a) {
  check_args(a);
  for_each_block(
      pool_, a.out_THE.rows, rows_per_block(a.out_THE.heads * a.out_THE.head_size),
      [&](std::int64_t begin, std::int64_t end) { vector_.attention_sink_forward(a, begin, end); });
}

void CpuBackend::attention_sink_backward(Stream&, const AttentionSinkBackward& a) {
  check_args(a);
  pool_.run(a.out_THE.heads, [&](std::int64_t head, int) {
    const float sum = vector_.attention_sink_backward(a, head);
    vector_.sum_partials(&sum, 1, 1, 1, a.dsinks_H.dtype, a.dsinks_H.data + head * size_of(a.dsinks_H.dtype),
                         a.mode);
  });
}

}  // namespace trainerd::kernels
