#pragma once

// What the forward and backward of our own attention share. A block of kThreads takes R rows of one head of
// one sequence and walks the other side in tiles of R rows, all in fp32 in shared memory. R threads groups of
// kPerRow neighbours own a row each.

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {

constexpr int kAttentionThreads = 128;

/// Rows of a tile and the largest head: four tiles of floats fit in the 48 KB that every kernel may use.
template <int Rows, int Columns>
struct AttentionTile {
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kPerRow = kAttentionThreads / Rows;  // threads of one row, all in one warp
  static constexpr int kEach = Columns / kPerRow;           // most elements of a row that a thread adds up
  static_assert(32 % kPerRow == 0 && Columns % kPerRow == 0);
  using Floats = float[Rows][Columns + 1];  // one more: rows begin in different banks
  using Scores = float[Rows][Rows + 1];
};

/// The part of a problem that every kernel reads.
struct AttentionShape {
  const std::int32_t* cu_seqlens;
  std::int64_t tokens, heads, kv_heads, head_size, tiles;
  bool causal;
  float scale;
  __host__ __device__ std::int64_t columns() const { return (heads + 2 * kv_heads) * head_size; }
};

/// The block's sequence and its first row there. `length` is 0 or less past `first` when there is nothing to
/// do.
struct BlockPlace {
  std::int64_t begin, length, first;
  __device__ BlockPlace(const AttentionShape& p, int rows) {
    const std::int64_t b = blockIdx.x / p.tiles;
    begin = p.cu_seqlens[b];
    length = p.cu_seqlens[b + 1] - begin;
    first = (blockIdx.x % p.tiles) * rows;
  }
  __device__ bool empty() const { return first >= length; }
};

/// tile[r][e] = x[(first + r) * columns + e] for rows before `length`, else 0. `x` is at the head's first
/// element.
template <class Tile, class T>
__device__ inline void load_tile(typename Tile::Floats& tile, const T* x, std::int64_t first,
                                 std::int64_t length, std::int64_t columns, int head_size) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * head_size; i += kAttentionThreads) {
    const int r = i / head_size, e = i % head_size;
    tile[r][e] = first + r < length ? widen(x[(first + r) * columns + e]) : 0.0f;
  }
}

__device__ inline float dot_rows(const float* a, const float* b, int n) {
  float sum = 0.0f;
  for (int e = 0; e < n; ++e) sum += a[e] * b[e];
  return sum;
}

/// Reduction over the kPerRow threads of a row.
template <int PerRow, class Op>
__device__ inline float row_reduce(float x, Op op) {
#pragma unroll
  for (int offset = PerRow / 2; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

template <class Args>
AttentionShape shape_of(const Args& a, int rows) {
  return {a.cu_seqlens.template as<std::int32_t>(),
          a.qkv.size(0),
          a.heads.heads,
          a.heads.kv_heads,
          a.heads.head_size,
          ceil_div(a.max_seqlen, rows),
          a.mask == MaskKind::causal,
          a.scale};
}

/// Calls `f` with the tile that holds a head of this size.
template <class F>
void with_tile(std::int64_t head_size, const F& f) {
  if (head_size <= 64) return f(AttentionTile<16, 64>{});
  if (head_size <= 128) return f(AttentionTile<16, 128>{});
  if (head_size <= kLargestCudaHead) return f(AttentionTile<8, kLargestCudaHead>{});
  throw base::device_error("attention on CUDA takes heads of at most " + std::to_string(kLargestCudaHead) +
                           " elements, not " + std::to_string(head_size) +
                           ": choose more heads, or device: cpu");
}

}  // namespace trainerd::kernels::cuda
