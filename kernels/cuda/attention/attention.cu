// Attention without a library or tensor cores (attention_mma.cu): simple and deterministic. fp32 FMAs on
// shared memory: it serves fp32 and unusual heads. FLOPs 4 s^2 E a head (half when causal); bytes: qkv and
// out once, keys and values again for every tile of queries, mostly from L2.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace trainerd::kernels::cuda {
namespace {

// Online softmax (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1). One block of an SM is promised and
// no more: for sm_100a the compiler would spill to fit others.
template <class Tile, class T>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    forward_kernel(AttentionShape p, const T* qkv, T* out, float* lse) {
  __shared__ typename Tile::Floats queries, keys_or_values;
  __shared__ typename Tile::Scores weights;
  constexpr int R = Tile::kRows, kPerRow = Tile::kPerRow;
  const BlockPlace at(p, R);
  if (at.empty()) return;
  const int E = static_cast<int>(p.head_size), row = static_cast<int>(threadIdx.x) / kPerRow,
            lane = static_cast<int>(threadIdx.x) % kPerRow;
  const std::int64_t head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads), columns = p.columns(),
                     query = at.first + row;
  const T* rows = qkv + at.begin * columns;
  const T *k = rows + (p.heads + kv_head) * E, *v = rows + (p.heads + p.kv_heads + kv_head) * E;
  load_tile<Tile>(queries, rows + head * E, at.first, at.length, columns, E);

  float sums[Tile::kEach] = {};
  float row_max = -INFINITY, row_sum = 0.0f;
  const std::int64_t end = p.causal && at.first + R < at.length ? at.first + R : at.length;
  for (std::int64_t key0 = 0; key0 < end; key0 += R) {
    __syncthreads();  // the values of the tile before have been read
    load_tile<Tile>(keys_or_values, k, key0, at.length, columns, E);
    __syncthreads();
    // A row's first tile has a key that the mask leaves (key 0), so its maximum is finite from there on.
    float scores[(R + kPerRow - 1) / kPerRow], tile_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < (R + kPerRow - 1) / kPerRow; ++i) {
      const int j = lane + i * kPerRow;
      const bool seen = j < R && key0 + j < at.length && (!p.causal || key0 + j <= query);
      scores[i] = seen ? p.scale * dot_rows(queries[row], keys_or_values[j], E) : -INFINITY;
      tile_max = fmaxf(tile_max, scores[i]);
    }
    const float new_max = fmaxf(row_max, row_reduce<kPerRow>(tile_max, Max{})),
                shrink = expf(row_max - new_max);
    float tile_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < (R + kPerRow - 1) / kPerRow; ++i) {
      const float weight = expf(scores[i] - new_max);
      tile_sum += weight;
      if (lane + i * kPerRow < R) weights[row][lane + i * kPerRow] = weight;
    }
    row_sum = row_sum * shrink + row_reduce<kPerRow>(tile_sum, Plus{});
    row_max = new_max;
    __syncthreads();
    load_tile<Tile>(keys_or_values, v, key0, at.length, columns, E);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tile::kEach; ++i) {
      const int e = lane + i * kPerRow;
      if (e >= E) break;
      float sum = sums[i] * shrink;
#pragma unroll 4
      for (int j = 0; j < R; ++j) sum += weights[row][j] * keys_or_values[j][e];
      sums[i] = sum;
    }
  }
  if (query >= at.length) return;
  T* to = out + ((at.begin + query) * p.heads + head) * E;
#pragma unroll
  for (int i = 0; i < Tile::kEach; ++i)
    if (lane + i * kPerRow < E) to[lane + i * kPerRow] = narrow<T>(sums[i] / row_sum);
  if (lane == 0) lse[head * p.tokens + at.begin + query] = row_max + logf(row_sum);
}

constexpr int kSwapThreads = 256;

// Bytes: 8 for each element; floor = bytes / memory bandwidth.
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
  with_tile(a.heads.head_size, [&](auto tile) {
    using Tile = decltype(tile);
    const AttentionShape shape = shape_of(a, Tile::kRows);
    with_type(a.qkv.dtype, "attention: fp32 or bf16", [&](auto t) {
      using T = decltype(t);
      launch(where, {shape.tiles * a.sequences, shape.heads}, kAttentionThreads, "attention_forward",
             forward_kernel<Tile, T>, shape, at<T>(a.qkv), at<T>(a.out_THE), a.lse_HT.as<float>());
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
