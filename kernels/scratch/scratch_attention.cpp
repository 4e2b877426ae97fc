#include "kernels/cpu/tiling/attention_tiling.h"
#include "kernels/cuda/launch/scratch.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

std::int64_t lay_out_attention(AttentionPass pass, DType dtype, std::int64_t max_keys,
                               const HeadGeometry& heads, std::byte* base, AttentionScratch& s) {
  const bool backward = pass == AttentionPass::backward;
  const std::int64_t per_word = dtype == DType::bf16 ? 2 : 1;
  const std::int64_t S = align_up(max_keys, 64);
  struct Sizes {
    std::int64_t rounded, words, panels;
  };
  const auto sizes_of = [&](std::int64_t size) {
    return Sizes{align_up(size, 16), (size + per_word - 1) / per_word, align_up(size, 64)};
  };
  const Sizes key = sizes_of(heads.head_size), value = sizes_of(heads.values_size());
  ScratchLayout layout;
  const auto words = [&](std::uint32_t*& p, std::int64_t count) {
    const std::int64_t begin = layout.take(count * 4);
    p = base == nullptr ? nullptr : reinterpret_cast<std::uint32_t*>(base + begin);
  };
  const auto floats = [&](float*& p, std::int64_t count) {
    const std::int64_t begin = layout.take(count * 4);
    p = base == nullptr ? nullptr : reinterpret_cast<float*>(base + begin);
  };
  s.max_keys = S;
  words(s.keys_by_head, S * key.words);
  words(s.queries, kQueryBlock * key.words);
  floats(s.sums, kQueryBlock * (backward ? key : value).rounded);
  floats(s.row_max, kQueryBlock);
  floats(s.row_sum, kQueryBlock);
  floats(s.scores, 6 * kKeyBlock);
  if (!backward) {
    words(s.values, value.panels * S / per_word);
    words(s.probs, 6 * kKeyStride / per_word);
    return layout.total();
  }
  words(s.values_by_head, S * value.words);
  words(s.keys, key.panels * S / per_word);
  floats(s.dkeys, S * key.rounded);
  floats(s.dvalues, S * value.rounded);
  words(s.douts, kQueryBlock * value.words);
  words(s.queries_packed, key.panels * kQueryBlock / per_word);
  words(s.douts_packed, value.panels * kQueryBlock / per_word);
  floats(s.dprobs, 6 * kKeyBlock);
  words(s.probs, kQueryBlock / per_word * kKeyStride);
  words(s.dscores, kQueryBlock * kKeyStride / per_word);
  if (per_word == 2) words(s.dscores_paired, kQueryBlock / per_word * kKeyStride);
  return layout.total();
}

std::int64_t scratch_bytes(const AttentionForward& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::attention_scratch_bytes(a, target);
  AttentionScratch unused;
  return target.threads * lay_out_attention(AttentionPass::forward, a.q_THE.dtype, a.block.keys.max_seqlen,
                                            a.block.heads, nullptr, unused);
}

std::int64_t scratch_bytes(const AttentionBackward& a, const Target& target) {
  if (target.kind == DeviceKind::cuda) return cuda::attention_scratch_bytes(a, target);
  AttentionScratch unused;
  return target.threads * lay_out_attention(AttentionPass::backward, a.q_THE.dtype, a.block.keys.max_seqlen,
                                            a.block.heads, nullptr, unused);
}

}  // namespace trainerd::kernels
