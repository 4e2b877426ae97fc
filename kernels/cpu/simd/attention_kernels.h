#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/ops.h"

namespace trainerd::kernels {

/// Query rows and keys processed together. Multiples of six and two, and of 64.
constexpr std::int64_t kQueryBlock = 96;
constexpr std::int64_t kKeyBlock = 256;
/// Words between rows of a block's probabilities. A power of two would map them to only a few sets of the
/// cache.
constexpr std::int64_t kKeyStride = kKeyBlock + 16;

/// One thread's scratch, 64-byte aligned, for sequences of up to S keys (rounded up to 64). A word is one
/// fp32 (also of fp16 heads) or two bf16; Ew is the words of a head, E16 the head size rounded up to 16,
/// panels are 64 columns wide. For values, outputs and their gradients, E is the size of a value head.
struct AttentionScratch {
  std::uint32_t* keys_by_head = nullptr;    ///< K^T: [S / 64][Ew][64]
  std::uint32_t* values_by_head = nullptr;  ///< V^T, backward
  std::uint32_t* keys = nullptr;            ///< K, backward: [E panels][S in words][64]
  std::uint32_t* values = nullptr;          ///< V, forward
  float* dkeys = nullptr;                   ///< [S][E16], backward; and dvalues
  float* dvalues = nullptr;
  // For one block of queries:
  std::uint32_t* queries = nullptr;         ///< rows: [kQueryBlock][Ew]
  std::uint32_t* douts = nullptr;           ///< rows, backward
  std::uint32_t* queries_packed = nullptr;  ///< [E panels][kQueryBlock in words][64], backward
  std::uint32_t* douts_packed = nullptr;
  float* sums = nullptr;     ///< [kQueryBlock][E16]: the output, or dq
  float* row_max = nullptr;  ///< [kQueryBlock], times log2 e; backward: the log-sum-exp
  float* row_sum = nullptr;  ///< [kQueryBlock]; backward: sum of dout * out
  // For one block of queries and keys:
  float* scores = nullptr;           ///< [6][kKeyBlock]
  float* dprobs = nullptr;           ///< [6][kKeyBlock], backward
  std::uint32_t* probs = nullptr;    ///< forward: rows of 6; backward: [kQueryBlock in words][kKeyStride]
  std::uint32_t* dscores = nullptr;  ///< rows: [kQueryBlock][kKeyStride words of fp32, or half of it]
  std::uint32_t* dscores_paired = nullptr;  ///< like `probs`, bf16 only
  std::int64_t max_keys = 0;                ///< S
};

/// One sequence and one key/value head with all its query heads. One thread processes it, in a fixed order.
struct AttentionUnit {
  std::int64_t first_query = 0, queries = 0;  ///< rows of the views
  std::int64_t first_key = 0, keys = 0;
  std::int64_t offset = 0;  ///< position of the first query minus that of the first key
  std::int64_t kv_head = 0;
};

/// The attention kernels of one instruction set. They hold no state and allocate nothing.
struct AttentionKernels {
  void (*forward)(const AttentionForward&, const AttentionUnit&, const AttentionScratch&);
  void (*backward)(const AttentionBackward&, const AttentionUnit&, const AttentionScratch&);
};

namespace portable {
const AttentionKernels& attention_kernels();
}
namespace avx2 {
const AttentionKernels& attention_kernels();
}
namespace avx512 {
const AttentionKernels& attention_kernels();
}
namespace avx512_bf16 {
const AttentionKernels& attention_kernels();
}

}  // namespace trainerd::kernels
