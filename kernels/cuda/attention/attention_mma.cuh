#pragma once

// What the forward and backward of our own attention on tensor cores share (mma.cuh). bf16, heads of a
// multiple of 8 elements. A block owns rows of one head of one sequence and walks the other side in tiles.

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/kernels/mma_tile.cuh"

namespace trainerd::kernels::cuda {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Whether 16-byte chunks make up the heads, for heads of at most `largest` elements.
template <class Args, class... Tensors>
bool mma_serves(const Launch& where, const Args& a, std::int64_t largest, const Tensors&... tensors) {
  return where.target.sm_version >= 80 && a.qkv.dtype == DType::bf16 && a.scale > 0.0f &&
         a.heads.head_size % 8 == 0 && a.heads.head_size <= largest && aligned(a.qkv, a.out_THE, tensors...);
}

/// The part of a problem that every kernel reads. `tiles` of a sequence, `columns` of a row of qkv.
struct MmaShape {
  const std::int32_t* cu_seqlens;
  std::int64_t tokens;
  int heads, kv_heads, group, head_size, columns, tiles;
  bool causal;
  float scale;
  /// Elements of a row of qkv before a key head, and from there to its values.
  __device__ int key_column(int kv_head) const { return (heads + kv_head) * head_size; }
  __device__ int value_offset() const { return kv_heads * head_size; }
};

template <class Args>
MmaShape mma_shape(const Args& a, int rows) {
  return {.cu_seqlens = a.cu_seqlens.template as<std::int32_t>(),
          .tokens = a.qkv.size(0),
          .heads = static_cast<int>(a.heads.heads),
          .kv_heads = static_cast<int>(a.heads.kv_heads),
          .group = static_cast<int>(a.heads.heads / a.heads.kv_heads),
          .head_size = static_cast<int>(a.heads.head_size),
          .columns = static_cast<int>(a.heads.columns()),
          .tiles = static_cast<int>(ceil_div(a.max_seqlen, rows)),
          .causal = a.mask == MaskKind::causal,
          .scale = a.scale};
}

/// A block's head, sequence and first row. Blocks go by sequence, tile of rows, head: neighbours share keys
/// and values in L2. `reversed` puts the last rows first: with a causal mask they see the most keys, and the
/// light blocks fill the end.
struct MmaPlace {
  std::int64_t begin = 0;
  int head = 0, length = 0, first = 0;
  __device__ MmaPlace(const MmaShape& p, int heads, int rows, bool reversed) {
    const int at = static_cast<int>(blockIdx.x) / heads, tile = at % p.tiles, sequence = at / p.tiles;
    head = static_cast<int>(blockIdx.x) % heads;
    begin = p.cu_seqlens[sequence];
    length = p.cu_seqlens[sequence + 1] - p.cu_seqlens[sequence];
    first = (reversed ? p.tiles - 1 - tile : tile) * rows;
  }
  __device__ bool empty() const { return first >= length; }
};

/// Row `row` of the block's sequence in a tensor with rows of `row_elements`.
template <class T>
__device__ inline T* row_of(T* x, const MmaPlace& at, int row, int row_elements) {
  return x + (at.begin + row) * row_elements;
}

/// The lane's first row and column of C (mma.cuh) and its warp's first row among those of the block, M
/// fragments a warp.
template <int M>
struct FragmentPlace {
  int row, column, warp_row;
  __device__ FragmentPlace() {
    const int thread = thread_now();
    row = thread >> 2 & 7;
    column = 2 * (thread & 3);
    warp_row = (thread >> 5) * 16 * M;
  }
};

/// Calls `f` with the columns of the smallest panel that holds a head, as a constant.
template <class F>
void with_columns(std::int64_t head_size, const F& f) {
  if (head_size <= 32) return f(std::integral_constant<int, 32>{});
  if (head_size <= 64) return f(std::integral_constant<int, 64>{});
  if (head_size <= 96) return f(std::integral_constant<int, 96>{});
  f(std::integral_constant<int, 128>{});
}

// attention_mma.cu, attention_mma_backward.cu: false, and nothing launched, when they do not serve the
// problem.
bool mma_attention_forward(const Launch&, const AttentionForward&);
bool mma_attention_backward(const Launch&, const AttentionBackward&);

}  // namespace trainerd::kernels::cuda
