// The forward of our own attention on tensor cores (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1),
// for sm_80 and later. A warp owns 16 M queries: their scores, weights and output stay in its registers, so a
// weight never leaves the thread that made it. Keys arrive while the tile before is weighted and added up,
// values while the scores are made.
//
// FLOPs 4 s^2 E a head (half when causal: tiles of keys that no query of a warp sees are skipped). Bytes: q
// and out once, k and v once for each tile of queries, from L2 but for the first. Floor: FLOPs / rate of
// mma.sync. Heads of 128: a warp reads 24 KB of shared memory for the 128 mma of a tile: 192 bytes each, 1.5
// clocks at 128 bytes a clock (with 16 queries a warp: 320 bytes). 128 registers of sums and 32 of scores:
// with 64 keys a tile ptxas spills. Heads of 64: 64 keys, 160 bytes a mma. Shared memory: (128 + 2 keys)
// rows, 48 KB for heads of 128, 32 KB for 64: two blocks of 4 warps on an SM, by their registers.

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/kernels/math.cuh"

namespace trainerd::kernels::cuda {
namespace {

template <int Columns>
struct ForwardTile {
  using P = Panel<Columns>;
  static constexpr int kM = 2, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kQueries = 16 * kM * kWarps, kKeys = Columns <= 64 ? 64 : 32;
  static constexpr int kBytes = P::bytes(kQueries + 2 * kKeys);
};

/// Scores of keys that are not there or that the mask hides become -inf. `row`, `key`: of scores[0][0][0].
template <int M, int N>
__device__ inline void mask_scores(float (&scores)[M][N][4], int row, int key, int length, bool causal) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = key + n * 8 + i % 2;
        if (j >= length || (causal && j > row + m * 16 + i / 2 * 8)) scores[m][n][i] = -INFINITY;
      }
}

/// Weights 2^(c s - c max) of scores s, narrowed, c = scale / ln 2; what was summed by an older maximum
/// shrinks. row_sum is of the thread's own columns.
template <int M, int N, int C>
__device__ inline void weigh(std::uint32_t (&weights)[M][N / 2][4], const float (&scores)[M][N][4],
                             float (&sums)[M][C][4], float (&row_max)[M][2], float (&row_sum)[M][2],
                             float c) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = row_max[m][h];
#pragma unroll
      for (int n = 0; n < N; ++n) most = fmaxf(most, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      most = row_reduce<4>(most, Max{});
      const float shrink = exp2_fast((row_max[m][h] - most) * c), shift = most * c;
      row_max[m][h] = most;
      row_sum[m][h] *= shrink;
#pragma unroll
      for (int n = 0; n < C; ++n)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) sums[m][n][i] *= shrink;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float x = exp2_fast(fmaf(scores[m][n][2 * h], c, -shift)),
                    y = exp2_fast(fmaf(scores[m][n][2 * h + 1], c, -shift));
        row_sum[m][h] += x + y;
        weights[m][n / 2][n % 2 * 2 + h] = pack_bf16(x, y);  // fragments of A, as narrow_fragments has them
      }
    }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    mma_forward_kernel(MmaShape p, const Bf16* qkv, Bf16* out, float* lse) {
  using P = typename Tile::P;
  constexpr int M = Tile::kM, N = Tile::kKeys, Q = Tile::kQueries;
  const MmaPlace at(p, p.heads, Q, p.causal);
  if (at.empty()) return;
  const int E = p.head_size;
  const SharedAddress queries = dynamic_shared(), keys = queries + P::bytes(Q), values = keys + P::bytes(N);
  const Bf16* rows = row_of(qkv, at, 0, p.columns);
  const Bf16 *k = rows + p.key_column(at.head / p.group), *v = k + p.value_offset();
  copy_rows<P, Q, Tile::kThreads>(queries, rows + at.head * E, at.first, at.length, p.columns, E);
  copy_rows<P, N, Tile::kThreads>(keys, k, 0, at.length, p.columns, E);

  float sums[M][P::kColumns / 8][4], row_max[M][2], row_sum[M][2];
  clear(sums);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row_max[m][h] = -INFINITY;
      row_sum[m][h] = 0.0f;
    }
  const float c = p.scale * kLog2e;
  const int end = p.causal ? min(at.length, at.first + Q) : at.length;
  for (int key0 = 0; key0 < end; key0 += N) {
    const FragmentPlace<M> fragment;
    const int warp_first = at.first + fragment.warp_row;
    // A row's first tile has a key that the mask leaves (key 0), so its maximum is finite from there on.
    const bool seen = !p.causal || key0 < warp_first + 16 * M;
    float scores[M][N / 8][4];
    wait_copies();
    __syncthreads();  // these keys are here, and the values before have been read
    copy_rows<P, N, Tile::kThreads>(values, v, key0, at.length, p.columns, E);
    if (seen) {
      clear(scores);
      multiply_rows<P>(scores, queries + P::bytes(fragment.warp_row) + P::lane(), keys + P::lane());
    }
    wait_copies();
    __syncthreads();  // these values are here, and the keys have been read
    if (key0 + N < end) copy_rows<P, N, Tile::kThreads>(keys, k, key0 + N, at.length, p.columns, E);
    if (seen) {
      if (key0 + N > at.length || (p.causal && key0 + N > warp_first + 1))
        mask_scores(scores, warp_first + fragment.row, key0 + fragment.column, at.length, p.causal);
      std::uint32_t weights[M][N / 16][4];
      weigh(weights, scores, sums, row_max, row_sum, c);
      multiply_fragments<P>(sums, weights, values + P::lane());
    }
  }
  const FragmentPlace<M> fragment;
  const int warp_first = at.first + fragment.warp_row;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = row_reduce<4>(row_sum[m][h], Plus{});
      const int query = warp_first + fragment.row + m * 16 + h * 8;
      if (fragment.column == 0 && query < at.length)
        lse[at.head * p.tokens + at.begin + query] = (row_max[m][h] * c + log2f(sum)) * kLn2;
      row_sum[m][h] = 1.0f / sum;
    }
  store_rows<P>(queries + P::bytes(fragment.warp_row), sums, row_sum,
                row_of(out, at, warp_first, p.heads * E) + at.head * E, at.length - warp_first, p.heads * E,
                E);
}

}  // namespace

bool mma_attention_forward(const Launch& where, const AttentionForward& a) {
  if (!mma_serves(where, a, 128)) return false;
  with_columns(a.heads.head_size, [&](auto columns) {
    using Tile = ForwardTile<decltype(columns)::value>;
    const MmaShape shape = mma_shape(a, Tile::kQueries);
    launch(where, {.x = shape.tiles * a.sequences * shape.heads, .shared_bytes = Tile::kBytes},
           Tile::kThreads, "mma_attention_forward", mma_forward_kernel<Tile>, shape, at<Bf16>(a.qkv),
           at<Bf16>(a.out_THE), a.lse_HT.as<float>());
  });
  return true;
}

}  // namespace trainerd::kernels::cuda
