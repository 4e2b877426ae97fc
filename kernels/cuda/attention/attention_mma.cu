// The forward of our own attention on tensor cores (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1),
// for sm_80 and later. A warp owns 16 M queries. Their scores, weights and output stay in its registers, so a
// weight never leaves the thread that computed it. Keys are loaded while the previous tile's values are
// summed, and values while the scores are computed.
//
// FLOPs: 2 s^2 (E + V) per head (half if causal: tiles of keys that no query of a warp sees are skipped).
// Bytes: q and out once; k and v once per tile of queries, from L2 except for the first. Floor: FLOPs / rate
// of mma.sync. Heads of 128: a warp reads 24 KB of shared memory for the 128 mma of a tile, 192 bytes each,
// or 1.5 clocks at 128 bytes per clock (with 16 queries per warp: 320 bytes). 128 registers hold sums and 32
// hold scores; with 64 keys per tile ptxas spills. Heads of 64: 64 keys, 160 bytes per mma. Shared memory:
// (128 + 2 keys) rows, 48 KB for heads of 128 and 32 KB for 64. Registers allow two blocks of 4 warps per SM.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace trainerd::kernels::cuda {
namespace {

template <int Columns>
struct ForwardTile {
  using P = Panel<Columns>;
  static constexpr int kM = 2, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kQueries = 16 * kM * kWarps, kKeys = Columns <= 64 ? 64 : 32;
  static constexpr int kBytes = P::bytes(kQueries + 2 * kKeys);
};

/// Computes weights 2^(c s - c max) of scores s in T, with c = scale / ln 2, and rescales sums made with
/// an older maximum. row_sum covers only the thread's own columns.
template <class T, int M, int N, int C>
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
      // Until a key is seen all weights are 0, so any reference works.
      const float base = most == -INFINITY ? 0.0f : most, shrink = exp2_fast((row_max[m][h] - base) * c),
                  shift = base * c;
      row_max[m][h] = most;
      row_sum[m][h] *= shrink;
      // The maximum rarely rises after the first tiles. A factor of 1 changes nothing.
      if (__any_sync(kFullWarp, shrink != 1.0f))
#pragma unroll
        for (int n = 0; n < C; ++n)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) sums[m][n][i] *= shrink;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float x = exp2_fast(fmaf(scores[m][n][2 * h], c, -shift)),
                    y = exp2_fast(fmaf(scores[m][n][2 * h + 1], c, -shift));
        row_sum[m][h] += x + y;
        // fragments of A, in the order of narrow_fragments
        weights[m][n / 2][n % 2 * 2 + h] = pack_pair<T>(x, y);
      }
    }
}

template <class T, class Tile, bool kCapped>
__global__ void __launch_bounds__(Tile::kThreads)
    mma_forward_kernel(AttentionShape p, Heads<const T> q, Heads<const T> k, Heads<const T> v, OutHeads out,
                       float* lse) {
  using P = typename Tile::P;
  constexpr int M = Tile::kM, N = Tile::kKeys, Q = Tile::kQueries;
  const MmaPlace at(p, p.heads, Q, p.sequences.causal);
  if (at.first >= at.queries) return;
  const int E = p.head_size, V = p.value_size;
  const SharedAddress queries = dynamic_shared(), keys = queries + P::bytes(Q), values = keys + P::bytes(N);
  const int kv_head = at.head / p.group, start = at.first_key(at.first) / N * N,
            end = at.end_key(at.first + Q - 1);
  copy_to_tile<P, Q, Tile::kThreads>(queries, q.at(at.query_begin, at.head * E), at.first, at.queries,
                                     q.stride, E);
  copy_to_tile<P, N, Tile::kThreads>(keys, k.at(at.key_begin, kv_head * E), start, at.keys, k.stride, E);

  float sums[M][P::kColumns / 8][4], row_max[M][2], row_sum[M][2];
  clear(sums);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row_max[m][h] = -INFINITY;
      row_sum[m][h] = 0.0f;
    }
  const ScoreCap<kCapped> cap{p};
  for (int key0 = start; key0 < end; key0 += N) {
    const FragmentPlace<M> fragment;
    const int warp_first = at.first + fragment.warp_row, warp_last = warp_first + 16 * M - 1;
    const bool seen = key0 < at.end_key(warp_last) && key0 + N > at.first_key(warp_first);
    float scores[M][N / 8][4];
    wait_copies();
    __syncthreads();  // these keys have arrived, and the previous values have been read
    // Addresses are computed where they are used: keeping them from tile to tile would take the registers of
    // the sums.
    copy_to_tile<P, N, Tile::kThreads>(values, v.at(opaque(at.key_begin), kv_head * V), key0, at.keys,
                                       v.stride, V);
    if (seen) {
      clear(scores);
      multiply_rows<T, P>(scores, queries + P::bytes(fragment.warp_row) + P::lane(),
                          keys + P::lane_of_rows());
      cap.apply(scores);
    }
    wait_copies();
    __syncthreads();  // these values have arrived, and the keys have been read
    if (key0 + N < end)
      copy_to_tile<P, N, Tile::kThreads>(keys, k.at(opaque(at.key_begin), kv_head * E), key0 + N, at.keys,
                                         k.stride, E);
    if (seen) {
      if (key0 + N > at.end_key(warp_first) || key0 < at.first_key(warp_last))
        hide<Rows::queries>(scores, warp_first + fragment.row, key0 + fragment.column, at, -INFINITY);
      std::uint32_t weights[M][N / 16][4];
      weigh<T>(weights, scores, sums, row_max, row_sum, p.exponent);
      multiply_fragments<T, P>(sums, weights, values + P::lane());
    }
  }
  if (start >= end) settle_copies();
  const FragmentPlace<M> fragment;
  const int warp_first = at.first + fragment.warp_row;
  float kept[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = row_reduce<4>(row_sum[m][h], Plus{});
      const int query = warp_first + fragment.row + m * 16 + h * 8;
      float* const to_lse = lse + at.head * p.tokens + at.query_begin + query;
      const bool inside = query < at.queries;
      const RowMerge merge = merge_row(sum, (row_max[m][h] * p.exponent + log2f(sum)) * kLn2, out.adds,
                                       inside && out.adds ? *to_lse : 0.0f);
      __syncwarp();  // all threads of a row have read its lse
      if (inside && fragment.column == 0) *to_lse = merge.lse;
      row_sum[m][h] = sum == 0.0f ? 0.0f : merge.added / sum;
      kept[m][h] = merge.kept;
    }
  put_rows<T, P>(queries + P::bytes(fragment.warp_row), sums, row_sum, kept, out, at.query_begin + warp_first,
                 at.head * V, at.queries - warp_first, V);
}

}  // namespace

bool mma_attention_forward(const Launch& where, const AttentionForward& a) {
  if (!mma_serves(where, a)) return false;
  with_columns(a.block.heads, [&](auto columns) {
    using Tile = ForwardTile<decltype(columns)::value>;
    const AttentionShape shape = shape_of(a, Side::queries, Tile::kQueries);
    with_softcap(a.block.softcap, [&](auto capped) {
      with_half_type(a.q_THE.dtype, [&]<class T>(T) {
        launch(where, {.x = shape.tiles * shape.heads, .shared_bytes = Tile::kBytes}, Tile::kThreads,
               "mma_attention_forward", mma_forward_kernel<T, Tile, decltype(capped)::value>, shape,
               heads_at<const T>(a.q_THE), heads_at<const T>(a.k_TKE), heads_at<const T>(a.v_TKE),
               out_heads(a.out_THE, a.mode), a.lse_HT.as<float>());
      });
    });
  });
  return true;
}

}  // namespace trainerd::kernels::cuda
