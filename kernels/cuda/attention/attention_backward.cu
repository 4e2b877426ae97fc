// The backward of our own attention without tensor cores (Dao, FlashAttention-2, arXiv 2307.08691, algorithm
// 2), in three kernels so that every sum has one owner and one order: the row sums of dO O; dK and dV by
// tiles of keys; dQ by tiles of queries. The scores are made twice: FLOPs 14 s^2 E a head (half when causal).
// Scratch: the row sums, fp32 [H, T].

#include "kernels/cuda/attention/attention_mma.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// One warp for each head of a token.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    row_sums_kernel(const T* out, const T* dout, float* sums_HT, std::int64_t tokens, std::int64_t heads,
                    int E) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (kAttentionThreads / 32) + warp_id();
  if (i >= tokens * heads) return;
  float sum = 0.0f;
  for (int e = lane_id(); e < E; e += 32) sum += widen(out[i * E + e]) * widen(dout[i * E + e]);
  sum = warp_reduce(sum, Plus{});
  if (lane_id() == 0) sums_HT[i % heads * tokens + i / heads] = sum;
}

/// What both gradient kernels read and write.
template <class T>
struct Gradients {
  const T* qkv;
  const T* dout;
  const float* lse_HT;
  const float* row_sums_HT;
  T* dqkv;
};

/// Weights and gradients of the scores of a tile of queries and one of keys, a row of queries by kPerRow
/// threads.
template <class Tile, class T>
__device__ inline void tile_scores(const AttentionShape& p, const Gradients<T>& g, const BlockPlace& at,
                                   std::int64_t head, std::int64_t query0, std::int64_t key0,
                                   const typename Tile::Floats& q, const typename Tile::Floats& k,
                                   const typename Tile::Floats& v, const typename Tile::Floats& dout,
                                   typename Tile::Scores& weights, typename Tile::Scores& dscores) {
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const int row = static_cast<int>(threadIdx.x) / kPerRow, lane = static_cast<int>(threadIdx.x) % kPerRow,
            E = static_cast<int>(p.head_size);
  const std::int64_t query = query0 + row, place = head * p.tokens + at.begin + query;
  const bool inside = query < at.length;
  const float lse = inside ? g.lse_HT[place] : 0.0f, row_sum = inside ? g.row_sums_HT[place] : 0.0f;
  for (int j = lane; j < R; j += kPerRow) {
    float weight = 0.0f, dscore = 0.0f;
    if (inside && key0 + j < at.length && (!p.causal || key0 + j <= query)) {
      weight = expf(p.scale * dot_rows(q[row], k[j], E) - lse);
      dscore = weight * (dot_rows(dout[row], v[j], E) - row_sum) * p.scale;
    }
    weights[row][j] = weight;
    dscores[row][j] = dscore;
  }
}

template <class Tile, class T>
__global__ void __launch_bounds__(kAttentionThreads) key_value_kernel(AttentionShape p, Gradients<T> g) {
  __shared__ typename Tile::Floats q, k, v, dout;
  __shared__ typename Tile::Scores weights, dscores;
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const BlockPlace at(p, R);
  if (at.empty()) return;
  const int E = static_cast<int>(p.head_size), row = static_cast<int>(threadIdx.x) / kPerRow,
            lane = static_cast<int>(threadIdx.x) % kPerRow;
  const std::int64_t kv_head = blockIdx.y, group = p.heads / p.kv_heads, columns = p.columns(),
                     out_columns = p.heads * p.head_size;
  const std::int64_t first_row = at.begin * columns, key_column = (p.heads + kv_head) * E,
                     value_column = (p.heads + p.kv_heads + kv_head) * E;
  load_tile<Tile>(k, g.qkv + first_row + key_column, at.first, at.length, columns, E);
  load_tile<Tile>(v, g.qkv + first_row + value_column, at.first, at.length, columns, E);

  float dk[Tile::kEach] = {}, dv[Tile::kEach] = {};
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t query0 = p.causal ? at.first : 0; query0 < at.length; query0 += R) {
      __syncthreads();  // the tiles before have been read
      load_tile<Tile>(q, g.qkv + first_row + head * E, query0, at.length, columns, E);
      load_tile<Tile>(dout, g.dout + at.begin * out_columns + head * E, query0, at.length, out_columns, E);
      __syncthreads();
      tile_scores<Tile>(p, g, at, head, query0, at.first, q, k, v, dout, weights, dscores);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Tile::kEach; ++i) {
        const int e = lane + i * kPerRow;
        if (e >= E) break;
#pragma unroll
        for (int j = 0; j < R; ++j) {
          dv[i] += weights[j][row] * dout[j][e];
          dk[i] += dscores[j][row] * q[j][e];
        }
      }
    }
  if (at.first + row >= at.length) return;
  T* to = g.dqkv + first_row + (at.first + row) * columns;
#pragma unroll
  for (int i = 0; i < Tile::kEach; ++i) {
    const int e = lane + i * kPerRow;
    if (e >= E) break;
    to[key_column + e] = narrow<T>(dk[i]);
    to[value_column + e] = narrow<T>(dv[i]);
  }
}

template <class Tile, class T>
__global__ void __launch_bounds__(kAttentionThreads) query_kernel(AttentionShape p, Gradients<T> g) {
  __shared__ typename Tile::Floats q, k, v, dout;
  __shared__ typename Tile::Scores weights, dscores;
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const BlockPlace at(p, R);
  if (at.empty()) return;
  const int E = static_cast<int>(p.head_size), row = static_cast<int>(threadIdx.x) / kPerRow,
            lane = static_cast<int>(threadIdx.x) % kPerRow;
  const std::int64_t head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads), columns = p.columns(),
                     out_columns = p.heads * p.head_size;
  const T* rows = g.qkv + at.begin * columns;
  load_tile<Tile>(q, rows + head * E, at.first, at.length, columns, E);
  load_tile<Tile>(dout, g.dout + at.begin * out_columns + head * E, at.first, at.length, out_columns, E);

  float dq[Tile::kEach] = {};
  const std::int64_t end = p.causal && at.first + R < at.length ? at.first + R : at.length;
  for (std::int64_t key0 = 0; key0 < end; key0 += R) {
    __syncthreads();  // the tiles before have been read
    load_tile<Tile>(k, rows + (p.heads + kv_head) * E, key0, at.length, columns, E);
    load_tile<Tile>(v, rows + (p.heads + p.kv_heads + kv_head) * E, key0, at.length, columns, E);
    __syncthreads();
    tile_scores<Tile>(p, g, at, head, at.first, key0, q, k, v, dout, weights, dscores);
    __syncwarp();  // a row's scores are made and read by one warp
#pragma unroll
    for (int i = 0; i < Tile::kEach; ++i) {
      const int e = lane + i * kPerRow;
      if (e >= E) break;
#pragma unroll
      for (int j = 0; j < R; ++j) dq[i] += dscores[row][j] * k[j][e];
    }
  }
  if (at.first + row >= at.length) return;
  T* to = g.dqkv + (at.begin + at.first + row) * columns + head * E;
#pragma unroll
  for (int i = 0; i < Tile::kEach; ++i)
    if (lane + i * kPerRow < E) to[lane + i * kPerRow] = narrow<T>(dq[i]);
}

}  // namespace

void attention_backward(const Launch& where, const AttentionBackward& a) {
  if (mma_attention_backward(where, a)) return;
  auto* const row_sums = reinterpret_cast<float*>(where.scratch);
  with_tile(a.heads.head_size, [&](auto tile) {
    using Tile = decltype(tile);
    const AttentionShape shape = shape_of(a, Tile::kRows);
    with_type(a.qkv.dtype, "attention: fp32 or bf16", [&](auto t) {
      using T = decltype(t);
      const Gradients<T> g{at<T>(a.qkv), at<T>(a.dout_THE), a.lse_HT.as<float>(), row_sums, at<T>(a.dqkv)};
      launch(where, {ceil_div(shape.tokens * shape.heads, kAttentionThreads / 32)}, kAttentionThreads,
             "attention_row_sums", row_sums_kernel<T>, at<T>(a.out_THE), at<T>(a.dout_THE), row_sums,
             shape.tokens, shape.heads, static_cast<int>(shape.head_size));
      launch(where, {shape.tiles * a.sequences, shape.kv_heads}, kAttentionThreads, "attention_key_value",
             key_value_kernel<Tile, T>, shape, g);
      launch(where, {shape.tiles * a.sequences, shape.heads}, kAttentionThreads, "attention_query",
             query_kernel<Tile, T>, shape, g);
    });
  });
}

}  // namespace trainerd::kernels::cuda
