// The backward of our own attention without tensor cores (Dao, FlashAttention-2, arXiv 2307.08691, algorithm
// 2). Three kernels, so that every sum has one owner and one order: the row sums of dO O; dK and dV by tiles
// of keys; dQ by tiles of queries. Scores are computed twice: FLOPs 2 s^2 (4 E + 3 V) per head (half if
// causal). Scratch: the row sums, fp32 [H, T].

#include "kernels/cuda/attention/attention_mma.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// One warp per head of a token.
template <class O, class T>
__global__ void __launch_bounds__(kAttentionThreads)
    row_sums_kernel(Heads<const O> out, Heads<const T> dout, float* sums_HT, std::int64_t tokens, int heads,
                    int E) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (kAttentionThreads / 32) + warp_id();
  if (i >= tokens * heads) return;
  const int column = static_cast<int>(i % heads) * E;
  const O* o = out.at(i / heads, column);
  const T* d = dout.at(i / heads, column);
  float sum = 0.0f;
  for (int e = lane_id(); e < E; e += 32) sum += widen(o[e]) * widen(d[e]);
  sum = warp_reduce(sum, Plus{});
  if (lane_id() == 0) sums_HT[i % heads * tokens + i / heads] = sum;
}

/// Inputs and outputs of both gradient kernels.
template <class T>
struct Gradients {
  Heads<const T> q, k, v, dout;
  const float* lse_HT;
  const float* row_sums_HT;
  OutHeads dq, dk, dv;
};

/// Weights and score gradients of a tile of queries and a tile of keys. kPerRow threads process one row of
/// queries.
template <class Tile, class T>
__device__ inline void tile_scores(const AttentionShape& p, const Gradients<T>& g, const SequencePlace& at,
                                   int head, int query0, int key0, const typename Tile::Floats& q,
                                   const typename Tile::Floats& k, const typename Tile::Floats& v,
                                   const typename Tile::Floats& dout, typename Tile::Scores& weights,
                                   typename Tile::Scores& dscores) {
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const int row = static_cast<int>(threadIdx.x) / kPerRow, lane = static_cast<int>(threadIdx.x) % kPerRow,
            E = p.head_size, V = p.value_size, query = query0 + row;
  const std::int64_t place = head * p.tokens + at.query_begin + query;
  const bool inside = query < at.queries;
  const float lse = inside ? g.lse_HT[place] : 0.0f, row_sum = inside ? g.row_sums_HT[place] : 0.0f;
  for (int j = lane; j < R; j += kPerRow) {
    float weight = 0.0f, dscore = 0.0f;
    if (inside && at.sees(query, key0 + j)) {
      const float score = p.capped(p.scale * dot_rows(q[row], k[j], E));
      weight = expf(score - lse);
      dscore = weight * (dot_rows(dout[row], v[j], V) - row_sum) * p.slope(score) * p.scale;
    }
    weights[row][j] = weight;
    dscores[row][j] = dscore;
  }
}

// Launch bounds of one block per SM, as in the forward.
template <class Tile, class T>
__global__ void __launch_bounds__(kAttentionThreads, 1) key_value_kernel(AttentionShape p, Gradients<T> g) {
  __shared__ typename Tile::Floats q, k, v, dout;
  __shared__ typename Tile::Scores weights, dscores;
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const TilePlace tile(p, static_cast<int>(blockIdx.x));
  const SequencePlace at(p.sequences, tile.sequence);
  const int first = tile.tile * R;
  if (first >= at.keys) return;
  const int E = p.head_size, V = p.value_size, row = static_cast<int>(threadIdx.x) / kPerRow,
            lane = static_cast<int>(threadIdx.x) % kPerRow, kv_head = static_cast<int>(blockIdx.y);
  load_tile<Tile>(k, g.k.at(at.key_begin, kv_head * E), first, at.keys, g.k.stride, E);
  load_tile<Tile>(v, g.v.at(at.key_begin, kv_head * V), first, at.keys, g.v.stride, V);

  float dk[Tile::kEach] = {}, dv[Tile::kEach] = {};
  const int start = at.first_query(first), end = at.end_query(first + R - 1);
  for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head)
    for (int query0 = start; query0 < end; query0 += R) {
      __syncthreads();  // the previous tiles have been read
      load_tile<Tile>(q, g.q.at(at.query_begin, head * E), query0, at.queries, g.q.stride, E);
      load_tile<Tile>(dout, g.dout.at(at.query_begin, head * V), query0, at.queries, g.dout.stride, V);
      __syncthreads();
      tile_scores<Tile>(p, g, at, head, query0, first, q, k, v, dout, weights, dscores);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Tile::kEach; ++i) {
        const int e = lane + i * kPerRow;
        if (e >= E && e >= V) break;
#pragma unroll
        for (int j = 0; j < R; ++j) {
          if (e < V) dv[i] += weights[j][row] * dout[j][e];
          if (e < E) dk[i] += dscores[j][row] * q[j][e];
        }
      }
    }
  if (first + row >= at.keys) return;
  const std::int64_t to = at.key_begin + first + row;
  store_row<Tile, T>(g.dk, to, kv_head * E, dk, 1.0f, 1.0f, g.dk.adds ? 1.0f : 0.0f, lane, E);
  store_row<Tile, T>(g.dv, to, kv_head * V, dv, 1.0f, 1.0f, g.dv.adds ? 1.0f : 0.0f, lane, V);
}

template <class Tile, class T>
__global__ void __launch_bounds__(kAttentionThreads) query_kernel(AttentionShape p, Gradients<T> g) {
  __shared__ typename Tile::Floats q, k, v, dout;
  __shared__ typename Tile::Scores weights, dscores;
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const TilePlace tile(p, static_cast<int>(blockIdx.x));
  const SequencePlace at(p.sequences, tile.sequence);
  const int first = tile.tile * R;
  if (first >= at.queries) return;
  const int E = p.head_size, V = p.value_size, row = static_cast<int>(threadIdx.x) / kPerRow,
            lane = static_cast<int>(threadIdx.x) % kPerRow, head = static_cast<int>(blockIdx.y),
            kv_head = head / p.group;
  load_tile<Tile>(q, g.q.at(at.query_begin, head * E), first, at.queries, g.q.stride, E);
  load_tile<Tile>(dout, g.dout.at(at.query_begin, head * V), first, at.queries, g.dout.stride, V);

  float dq[Tile::kEach] = {};
  const int end = at.end_key(first + R - 1);
  for (int key0 = at.first_key(first) / R * R; key0 < end; key0 += R) {
    __syncthreads();  // the previous tiles have been read
    load_tile<Tile>(k, g.k.at(at.key_begin, kv_head * E), key0, at.keys, g.k.stride, E);
    load_tile<Tile>(v, g.v.at(at.key_begin, kv_head * V), key0, at.keys, g.v.stride, V);
    __syncthreads();
    tile_scores<Tile>(p, g, at, head, first, key0, q, k, v, dout, weights, dscores);
    __syncwarp();  // one warp computes and reads a row's scores
#pragma unroll
    for (int i = 0; i < Tile::kEach; ++i) {
      const int e = lane + i * kPerRow;
      if (e >= E) break;
#pragma unroll
      for (int j = 0; j < R; ++j) dq[i] += dscores[row][j] * k[j][e];
    }
  }
  if (first + row >= at.queries) return;
  store_row<Tile, T>(g.dq, at.query_begin + first + row, head * E, dq, 1.0f, 1.0f, g.dq.adds ? 1.0f : 0.0f,
                     lane, E);
}

}  // namespace

void attention_backward(const Launch& where, const AttentionBackward& a) {
  if (mma_attention_backward(where, a)) return;
  auto* const row_sums = reinterpret_cast<float*>(where.scratch);
  with_tile(a.block.heads, [&](auto tile) {
    using Tile = decltype(tile);
    const AttentionShape by_queries = shape_of(a, Side::queries, Tile::kRows),
                         by_keys = shape_of(a, Side::keys, Tile::kRows);
    with_type(a.q_THE.dtype, "attention: fp32, bf16 or fp16", [&](auto t) {
      using T = decltype(t);
      const Gradients<T> g{.q = heads_at<const T>(a.q_THE),
                           .k = heads_at<const T>(a.k_TKE),
                           .v = heads_at<const T>(a.v_TKE),
                           .dout = heads_at<const T>(a.dout_THE),
                           .lse_HT = a.lse_HT.as<float>(),
                           .row_sums_HT = row_sums,
                           .dq = out_heads(a.dq_THE, a.dq_mode),
                           .dk = out_heads(a.dk_TKE, a.dkv_mode),
                           .dv = out_heads(a.dv_TKE, a.dkv_mode)};
      // The output is in the dtype of the heads, or in fp32.
      const auto sum_rows = [&]<class O>(O) {
        launch(where, {ceil_div(by_queries.tokens * by_queries.heads, kAttentionThreads / 32)},
               kAttentionThreads, "attention_row_sums", row_sums_kernel<O, T>, heads_at<const O>(a.out_THE),
               g.dout, row_sums, by_queries.tokens, by_queries.heads, by_queries.value_size);
      };
      if (a.out_THE.dtype == DType::f32) sum_rows(float{});
      else sum_rows(T{});
      launch(where, {by_keys.tiles, by_keys.kv_heads}, kAttentionThreads, "attention_key_value",
             key_value_kernel<Tile, T>, by_keys, g);
      launch(where, {by_queries.tiles, by_queries.heads}, kAttentionThreads, "attention_query",
             query_kernel<Tile, T>, by_queries, g);
    });
  });
}

}  // namespace trainerd::kernels::cuda
