#pragma once

// Common parts of the forward and backward of our own attention. A block of kThreads owns R rows of one head
// of one sequence and loops over the other side in tiles of R rows, all in fp32 in shared memory. The threads
// form R groups of kPerRow neighbours, one group per row.
// kPerRow neighbours own a row each.

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"
#include "kernels/cuda/launch/attention_problem.h"

namespace trainerd::kernels::cuda {

constexpr int kAttentionThreads = 128;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Rows of a tile and the largest head. Four tiles of floats fit in the 48 KB that every kernel may use.
template <int Rows, int Columns>
struct AttentionTile {
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kPerRow = kAttentionThreads / Rows;  // threads per row, all in one warp
  static constexpr int kEach = Columns / kPerRow;           // maximum elements of a row that a thread sums
  static_assert(32 % kPerRow == 0 && Columns % kPerRow == 0);
  using Floats = float[Rows][Columns + 1];  // one more, so that rows begin in different banks
  using Scores = float[Rows][Rows + 1];
};

/// Heads in device memory: head h of row t begins at data[t * stride + h * head_size].
template <class T>
struct Heads {
  T* data;
  int stride;
  __device__ T* at(std::int64_t row, int column) const { return data + row * stride + column; }
};
template <class T>
Heads<T> heads_at(const HeadView& x) {
  base::check(x.row_stride <= 0x7fffffff, "attention on CUDA: rows of at most 2^31 elements");
  return {reinterpret_cast<T*>(x.data), static_cast<int>(x.row_stride)};
}

/// Heads that a kernel writes or accumulates into, in the dtype of its inputs or fp32.
struct OutHeads {
  std::byte* data;
  int stride;
  bool fp32, adds;
  template <class T>
  __device__ Heads<T> as() const {
    return {reinterpret_cast<T*>(data), stride};
  }
};
inline OutHeads out_heads(const HeadView& x, WriteMode mode) {
  return {x.data, heads_at<std::byte>(x).stride, x.dtype == DType::f32, mode == WriteMode::accumulate};
}

/// Positions of the sequences, and the keys that a query sees.
struct SequencesShape {
  const std::int32_t *query_bounds, *key_bounds;
  const std::int32_t *query_first, *key_first;  // may be null
  std::int64_t offset, window;                  // offset: first query minus first key; window 0: none
  bool causal;
};
inline SequencesShape sequences_of(const AttentionBlock& b) {
  return {.query_bounds = b.queries.cu_seqlens.as<std::int32_t>(),
          .key_bounds = b.keys.cu_seqlens.as<std::int32_t>(),
          .query_first = at<std::int32_t>(b.queries.first_B),
          .key_first = at<std::int32_t>(b.keys.first_B),
          .offset = b.queries.first - b.keys.first,
          .window = b.window,
          .causal = b.mask == MaskKind::causal};
}

/// One sequence: its rows, and its mask. Query q sees keys [q + begin_shift, q + end_shift), limited to
/// existing keys. Neither bound decreases with q.
struct SequencePlace {
  int query_begin = 0, key_begin = 0, queries = 0, keys = 0, begin_shift = 0, end_shift = 0;

  __device__ SequencePlace(const SequencesShape& p, std::int64_t b)
      : query_begin(p.query_bounds[b]),
        key_begin(p.key_bounds[b]),
        queries(p.query_bounds[b + 1] - p.query_bounds[b]),
        keys(p.key_bounds[b + 1] - p.key_bounds[b]),
        begin_shift(-queries),
        end_shift(keys) {
    if (!p.causal) return;
    const std::int64_t offset = p.offset + (p.query_first != nullptr ? p.query_first[b] : 0) -
                                (p.key_first != nullptr ? p.key_first[b] : 0);
    end_shift = clamped(offset + 1);
    if (p.window > 0) begin_shift = clamped(offset + 1 - p.window);
  }
  /// Beyond these limits every query sees either all keys or none.
  __device__ int clamped(std::int64_t shift) const {
    return static_cast<int>(shift < -queries ? -queries : shift > keys ? keys : shift);
  }
  __device__ bool sees(int query, int key) const {
    return key >= query + begin_shift && key < query + end_shift && key < keys;
  }
  /// Keys [first_key, end_key) that some query of [first, last] sees; the same for queries.
  __device__ int first_key(int first) const { return max(0, first + begin_shift); }
  __device__ int end_key(int last) const { return min(keys, last + end_shift); }
  __device__ int first_query(int first) const { return max(0, first - end_shift + 1); }
  __device__ int end_query(int last) const { return min(queries, last - begin_shift + 1); }
};

/// The part of a problem that every kernel reads.
struct AttentionShape {
  SequencesShape sequences;
  std::int64_t tokens;  // queries of all sequences
  int heads, kv_heads, group, head_size, value_size;
  float scale, softcap;
  // A weight is 2^(exponent s - ..), where s is the plain product q k, or tanh(inner q k) with a softcap.
  float exponent, inner;

  // The side whose rows blocks own, and its tiles (see AttentionTiles).
  const std::int32_t* bounds;
  int count, tile_rows, even_tiles;  // count: of sequences
  std::int64_t tiles;

  /// A scaled score after the softcap, if there is one.
  __device__ float capped(float score) const {
    return softcap > 0.0f ? softcap * tanhf(score / softcap) : score;
  }
  /// Its derivative with respect to the scaled score.
  __device__ float slope(float capped) const {
    const float t = softcap > 0.0f ? capped / softcap : 0.0f;
    return 1.0f - t * t;
  }
};

/// The tile with a number, of a sequence that may have fewer tiles.
struct TilePlace {
  int sequence, tile;
  __device__ TilePlace(const AttentionShape& p, int number)
      : sequence(p.even_tiles > 0 ? number / p.even_tiles : 0),
        tile(p.even_tiles > 0 ? number % p.even_tiles : 0) {
    if (p.even_tiles > 0) return;
    for (int end = p.count; end - sequence > 1;) {
      const int middle = (sequence + end) / 2;
      if (p.bounds[middle] / p.tile_rows + middle <= number) sequence = middle;
      else end = middle;
    }
    tile = number - (p.bounds[sequence] / p.tile_rows + sequence);
  }
};

enum class Side : std::uint8_t { queries, keys };

template <class Args>
AttentionShape shape_of(const Args& a, Side own, int rows) {
  const HeadGeometry& h = a.block.heads;
  const bool capped = a.block.softcap > 0.0f;
  const AttentionRows& side = own == Side::queries ? a.block.queries : a.block.keys;
  const AttentionTiles tiles = attention_tiles(
      a.block.sequences, (own == Side::queries ? a.q_THE : a.k_TKE).rows, side.max_seqlen, rows);
  return {.sequences = sequences_of(a.block),
          .tokens = a.q_THE.rows,
          .heads = static_cast<int>(h.heads),
          .kv_heads = static_cast<int>(h.kv_heads),
          .group = static_cast<int>(h.heads / h.kv_heads),
          .head_size = static_cast<int>(h.head_size),
          .value_size = static_cast<int>(h.values_size()),
          .scale = a.block.scale,
          .softcap = a.block.softcap,
          .exponent = (capped ? a.block.softcap : a.block.scale) * kLog2e,
          .inner = capped ? a.block.scale / a.block.softcap : 0.0f,
          .bounds = side.cu_seqlens.template as<std::int32_t>(),
          .count = static_cast<int>(a.block.sequences),
          .tile_rows = rows,
          .even_tiles = static_cast<int>(tiles.even),
          .tiles = tiles.all};
}

/// Merges a row's out and lse over these keys with earlier ones: out' = added * out + kept * earlier out
/// (like blocks of keys in arXiv 2307.08691, section 3.1). `sum` is the row's sum of weights, 0 if it sees no
/// key.
struct RowMerge {
  float added, kept, lse;
};
__device__ inline RowMerge merge_row(float sum, float lse, bool merges, float earlier) {
  if (sum == 0.0f) return {0.0f, merges ? 1.0f : 0.0f, merges ? earlier : -INFINITY};
  if (!merges || earlier == -INFINITY) return {1.0f, 0.0f, lse};
  const float above = lse - earlier, ratio = expf(-fabsf(above)), whole = 1.0f + ratio;
  return {(above > 0.0f ? 1.0f : ratio) / whole, (above > 0.0f ? ratio : 1.0f) / whole,
          fmaxf(lse, earlier) + log1pf(ratio)};
}

/// added * x + kept * old. If one factor is 0, that term is left out, even if its value is not finite.
template <class T>
__device__ inline float blended(float added, float x, float kept, const T& old) {
  if (kept == 0.0f) return added * x;
  return added == 0.0f ? kept * widen(old) : added * x + kept * widen(old);
}

/// tile[r][e] = x[(first + r) * stride + e] for rows before `length`, else 0. `x` points to the head's first
/// element of row 0.
template <class Tile, class T>
__device__ inline void load_tile(typename Tile::Floats& tile, const T* x, int first, int length, int stride,
                                 int head_size) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * head_size; i += kAttentionThreads) {
    const int r = i / head_size, e = i % head_size;
    tile[r][e] = first + r < length ? widen(x[static_cast<std::int64_t>(first + r) * stride + e]) : 0.0f;
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

/// Stores the lane's elements lane, lane + kPerRow, .. of a row: added * (sums / divisor) + kept * previous
/// value.
template <class Tile, class T>
__device__ inline void store_row(const OutHeads& out, std::int64_t row, int column,
                                 const float (&sums)[Tile::kEach], float divisor, float added, float kept,
                                 int lane, int E) {
  const auto store = [&](auto heads) {
    auto* to = heads.at(row, column);
    using O = std::remove_pointer_t<decltype(to)>;
#pragma unroll
    for (int i = 0; i < Tile::kEach; ++i) {
      const int e = lane + i * Tile::kPerRow;
      if (e < E) to[e] = narrow<O>(blended(added, sums[i] / divisor, kept, to[e]));
    }
  };
  if (out.fp32) store(out.as<float>());
  else store(out.as<T>());
}

/// Calls `f` with the tile type for these heads.
template <class F>
void with_tile(const HeadGeometry& heads, const F& f) {
  const std::int64_t head_size = std::max(heads.head_size, heads.values_size());
  if (head_size <= 64) return f(AttentionTile<16, 64>{});
  if (head_size <= 128) return f(AttentionTile<16, 128>{});
  base::check(head_size <= kLargestCudaHead, "attention: a head is larger than was planned");
  f(AttentionTile<8, kLargestCudaHead>{});
}

}  // namespace trainerd::kernels::cuda
