#pragma once

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/tiling/scratch_layout.h"

namespace trainerd::kernels {

enum class AttentionPass : std::uint8_t { forward, backward };

/// Lays out one thread's attention scratch at `base` for sequences of up to `max_keys` keys, and returns its
/// bytes. With `base` null it only computes the size.
std::int64_t lay_out_attention(AttentionPass pass, DType dtype, std::int64_t max_keys,
                               const HeadGeometry& heads, std::byte* base, AttentionScratch& scratch);

}  // namespace trainerd::kernels
