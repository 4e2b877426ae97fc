#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/plan/attention_plan.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Runs `unit(begin, length, kv_head, scratch)` for every sequence and key/value head, each in one thread.
template <class Args, class Unit>
void for_each_unit(base::ThreadPool& pool, const Args& a, AttentionPass pass, std::byte* memory,
                   const Unit& unit) {
  const std::int64_t heads = a.heads.kv_heads;
  const std::int32_t* cu_seqlens = a.cu_seqlens.template as<std::int32_t>();
  base::check(a.cu_seqlens.numel() == a.sequences + 1, "attention: one more bound than sequences");
  base::check(heads > 0 && a.heads.heads % heads == 0,
              "attention: query heads are a multiple of the key heads");
  for (std::int64_t b = 0; b < a.sequences; ++b) {
    const std::int64_t length = cu_seqlens[b + 1] - cu_seqlens[b];
    base::check(
        length >= 0 && length <= a.max_seqlen && cu_seqlens[b] >= 0 && cu_seqlens[b + 1] <= a.qkv.size(0),
        "attention: a sequence lies outside the tokens or is longer than max_seqlen");
  }
  pool.run(a.sequences * heads, [&](std::int64_t block, int thread) {
    const std::int64_t b = block / heads;
    AttentionScratch scratch;
    const std::int64_t bytes =
        lay_out_attention(pass, a.qkv.dtype, a.max_seqlen, a.heads.head_size, memory, scratch);
    lay_out_attention(pass, a.qkv.dtype, a.max_seqlen, a.heads.head_size, memory + thread * bytes, scratch);
    unit(cu_seqlens[b], cu_seqlens[b + 1] - cu_seqlens[b], block % heads, scratch);
  });
}

}  // namespace

void CpuBackend::attention_forward(Stream& stream, const AttentionForward& args) {
  const ArenaScope scope(stream.scratch());
  std::byte* memory = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  base::check(args.out_THE.dtype == args.qkv.dtype, "attention: activations are of one dtype");
  for_each_unit(
      pool_, args, AttentionPass::forward, memory,
      [&](std::int64_t begin, std::int64_t length, std::int64_t kv_head, const AttentionScratch& scratch) {
        attention_.forward(args, begin, length, kv_head, scratch);
      });
}

void CpuBackend::attention_backward(Stream& stream, const AttentionBackward& args) {
  const ArenaScope scope(stream.scratch());
  std::byte* memory = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  base::check(args.out_THE.dtype == args.qkv.dtype && args.dout_THE.dtype == args.qkv.dtype &&
                  args.dqkv.dtype == args.qkv.dtype,
              "attention: activations are of one dtype");
  for_each_unit(
      pool_, args, AttentionPass::backward, memory,
      [&](std::int64_t begin, std::int64_t length, std::int64_t kv_head, const AttentionScratch& scratch) {
        attention_.backward(args, begin, length, kv_head, scratch);
      });
}

}  // namespace trainerd::kernels
