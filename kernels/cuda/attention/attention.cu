// Attention without a library or tensor cores (attention_mma.cu): simple and deterministic. Uses fp32 FMAs on
// shared memory, for fp32 and unusual heads. FLOPs: 2 s^2 (E + V) per head (half if causal). Bytes: qkv and
// out once; keys and values again for every tile of queries, mostly from L2.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace trainerd::kernels::cuda {
namespace {

// Online softmax (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1). The launch bounds promise only one
// block per SM: for sm_100a the compiler would spill to fit more.
template <class Tile, class T>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    forward_kernel(AttentionShape p, Heads<const T> q, Heads<const T> k, Heads<const T> v, OutHeads out,
                   float* lse) {
  __shared__ typename Tile::Floats queries, keys_or_values;
  __shared__ typename Tile::Scores weights;
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const TilePlace tile(p, static_cast<int>(blockIdx.x));
  const SequencePlace at(p.sequences, tile.sequence);
  const int first = tile.tile * R;
  if (first >= at.queries) return;
  const int E = p.head_size, V = p.value_size, row = static_cast<int>(threadIdx.x) / kPerRow,
            lane = static_cast<int>(threadIdx.x) % kPerRow, head = static_cast<int>(blockIdx.y),
            kv_head = head / p.group, query = first + row;
  load_tile<Tile>(queries, q.at(at.query_begin, head * E), first, at.queries, q.stride, E);

  float sums[Tile::kEach] = {};
  float row_max = -INFINITY, row_sum = 0.0f;
  const int end = at.end_key(first + R - 1);
  for (int key0 = at.first_key(first) / R * R; key0 < end; key0 += R) {
    __syncthreads();  // the previous tile's values have been read
    load_tile<Tile>(keys_or_values, k.at(at.key_begin, kv_head * E), key0, at.keys, k.stride, E);
    __syncthreads();
    float scores[(R + kPerRow - 1) / kPerRow], tile_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < (R + kPerRow - 1) / kPerRow; ++i) {
      const int j = lane + i * kPerRow;
      scores[i] = j < R && at.sees(query, key0 + j)
                      ? p.capped(p.scale * dot_rows(queries[row], keys_or_values[j], E))
                      : -INFINITY;
      tile_max = fmaxf(tile_max, scores[i]);
    }
    // Until a key is seen all weights are 0, so any reference works.
    const float new_max = fmaxf(row_max, row_reduce<kPerRow>(tile_max, Max{})),
                base = new_max == -INFINITY ? 0.0f : new_max, shrink = expf(row_max - base);
    float tile_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < (R + kPerRow - 1) / kPerRow; ++i) {
      const float weight = expf(scores[i] - base);
      tile_sum += weight;
      if (lane + i * kPerRow < R) weights[row][lane + i * kPerRow] = weight;
    }
    row_sum = row_sum * shrink + row_reduce<kPerRow>(tile_sum, Plus{});
    row_max = new_max;
    __syncthreads();
    load_tile<Tile>(keys_or_values, v.at(at.key_begin, kv_head * V), key0, at.keys, v.stride, V);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tile::kEach; ++i) {
      const int e = lane + i * kPerRow;
      if (e >= V) break;
      float sum = sums[i] * shrink;
#pragma unroll 4
      for (int j = 0; j < R; ++j) sum += weights[row][j] * keys_or_values[j][e];
      sums[i] = sum;
    }
  }
  float* const to_lse = lse + head * p.tokens + at.query_begin + query;
  const bool inside = query < at.queries;
  const RowMerge merge =
      merge_row(row_sum, row_max + logf(row_sum), out.adds, inside && out.adds ? *to_lse : 0.0f);
  __syncwarp();  // all threads of a row have read its lse
  if (!inside) return;
  if (lane == 0) *to_lse = merge.lse;
  store_row<Tile, T>(out, at.query_begin + query, head * V, sums, row_sum == 0.0f ? 1.0f : row_sum,
                     merge.added, merge.kept, lane, V);
}

constexpr int kSwapThreads = 256;

// Bytes: 8 per element; floor = bytes / memory bandwidth.
__global__ void __launch_bounds__(kSwapThreads)
    swap_leading_kernel(const float* x, float* out, std::int64_t A, std::int64_t B, std::int64_t C) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSwapThreads + threadIdx.x;
  if (i >= A * B * C) return;
  const std::int64_t c = i % C, b = i / C % B, a = i / (C * B);
  out[(b * A + a) * C + c] = x[i];
}

}  // namespace

void attention_forward(const Launch& where, const AttentionForward& a) {
  if (mma_attention_forward(where, a)) return;
  with_tile(a.block.heads, [&](auto tile) {
    using Tile = decltype(tile);
    const AttentionShape shape = shape_of(a, Side::queries, Tile::kRows);
    with_type(a.q_THE.dtype, "attention: fp32, bf16 or fp16", [&](auto t) {
      using T = decltype(t);
      launch(where, {shape.tiles, shape.heads}, kAttentionThreads, "attention_forward",
             forward_kernel<Tile, T>, shape, heads_at<const T>(a.q_THE), heads_at<const T>(a.k_TKE),
             heads_at<const T>(a.v_TKE), out_heads(a.out_THE, a.mode), a.lse_HT.as<float>());
    });
  });
}

void swap_leading(const Launch& where, const SwapLeading& a) {
  base::check(a.x_ABC.shape.ndim == 3 && a.x_ABC.numel() == a.out_BAC.numel(),
              "swap_leading: three dims, as many elements");
  launch(where, {ceil_div(a.x_ABC.numel(), kSwapThreads)}, kSwapThreads, "swap_leading", swap_leading_kernel,
         a.x_ABC.as<float>(), a.out_BAC.as<float>(), a.x_ABC.size(0), a.x_ABC.size(1), a.x_ABC.size(2));
}

}  // namespace trainerd::kernels::cuda
