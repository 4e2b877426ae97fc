// The backward of our own attention on tensor cores (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 2).
// Three kernels, so that every sum has one owner and one order, without atomics: the row sums of dO O; dK and
// dV by tiles of keys; dQ by tiles of queries. Both gradient kernels compute the scores and the gradients of
// the weights: 7 products instead of 5, FLOPs 2 s^2 (4 E + 3 V) per head (half if causal). Bytes: each of q,
// k, v, dO once as the block's own rows, and once per tile of the other side, from L2 except for the first;
// dq, dk, dv once. Floor: FLOPs / rate of mma.sync.
//
// A warp's own rows are the rows of the fragments of A and of the sums. So one thread turns scores
// (transposed for dK and dV) into weights, narrows them and multiplies again, all in registers. Tiles of the
// other side have 32 rows and are double-buffered, with one barrier per tile. Heads of 128:
//   dK, dV: 8 warps of 16 keys, 128 registers of sums; 40 KB of shared memory read for 128 mma, 320 bytes or
//           2.5 clocks each; 97 KB of shared memory; registers allow one block (8 warps) per SM
//   dQ:     4 warps of 32 queries, 128 registers of sums; 40 KB for 192 mma, 208 bytes or 1.6 clocks each;
//           97 KB of shared memory; two blocks (8 warps) on an SM with 227 KB
// Heads up to 64: 4 warps of 32 rows in both (with a softcap 8 of 16 keys for heads of 64), 50 KB or less.
// All fit in the 99 KB per block of sm_86, sm_89 and sm_120.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// Lanes threads process one head of a token, 8 elements each. Bytes: out and dout once; floor = bytes /
/// memory bandwidth.
template <class T, int Lanes>
__global__ void __launch_bounds__(kAttentionThreads)
    mma_row_sums_kernel(Heads<const T> out, Heads<const T> dout, bool fp32_out, float* sums_HT,
                        std::int64_t tokens, int heads, int E) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kAttentionThreads + threadIdx.x) / Lanes;
  const int e = static_cast<int>(threadIdx.x) % Lanes * 8;
  float sum = 0.0f;
  if (i < tokens * heads && e < E) {
    const int column = static_cast<int>(i % heads) * E + e;
    float o[8], d[8];
    if (fp32_out)
      load<8>(Heads<const float>{reinterpret_cast<const float*>(out.data), out.stride}.at(i / heads, column),
              o);
    else load<8>(out.at(i / heads, column), o);
    load<8>(dout.at(i / heads, column), d);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += o[j] * d[j];
  }
  sum = row_reduce<Lanes>(sum, Plus{});
  if (i < tokens * heads && e == 0) sums_HT[i % heads * tokens + i / heads] = sum;
}

template <class T>
struct MmaGradients {
  Heads<const T> q, k, v, dout;
  const float* lse_HT;
  const float* row_sums_HT;
  OutHeads dq, dk, dv;
};

/// Shared memory: the block's own two tiles of rows, the two tiles of the other side twice, `Numbers` for
/// each of its rows twice, `OwnNumbers` for each own row.
template <int Columns, int M_, int Warps, int Numbers, int OwnNumbers>
struct BackwardTile {
  using P = Panel<Columns>;
  static constexpr int kM = M_, kThreads = 32 * Warps, kOwn = 16 * M_ * Warps, kOther = 32;
  static constexpr int kTiles = P::bytes(2 * kOwn + 4 * kOther),
                       kOwnNumbers = kTiles + 2 * Numbers * kOther * 4,
                       kBytes = kOwnNumbers + OwnNumbers * kOwn * 4;
  __device__ static SharedAddress own(int which, int row = 0) {
    return dynamic_shared() + P::bytes(which * kOwn + row);
  }
  __device__ static SharedAddress other(int stage, int which) {
    return dynamic_shared() + P::bytes(2 * kOwn + (stage * 2 + which) * kOther);
  }
  __device__ static SharedAddress numbers(int stage, int which, int row = 0) {
    return dynamic_shared() +
           static_cast<SharedAddress>(kTiles + ((stage * Numbers + which) * kOther + row) * 4);
  }
  /// All numbers of an own row.
  __device__ static SharedAddress own_numbers(int row) {
    return dynamic_shared() + static_cast<SharedAddress>(kOwnNumbers + row * OwnNumbers * 4);
  }
};
/// With a softcap, heads of 64 have no registers for 32 rows per warp.
template <int Columns, bool kCapped>
using KeyTile = std::conditional_t<(Columns < 64 || (Columns == 64 && !kCapped)),
                                   BackwardTile<Columns, 2, 4, 2, 0>, BackwardTile<Columns, 1, 8, 2, 0>>;
template <int Columns>
using QueryTile = BackwardTile<Columns, 2, 4, 0, 2>;

/// Copies the queries' side for one step of a block that owns keys.
template <class Tile, class T>
__device__ inline void copy_queries(const AttentionShape& p, const MmaGradients<T>& g, const MmaPlace& at,
                                    int stage, int head, int query0) {
  using P = typename Tile::P;
  constexpr int N = Tile::kOther, kThreads = Tile::kThreads;
  const int E = p.head_size, V = p.value_size, i = thread_now();
  copy_to_tile<P, N, kThreads>(Tile::other(stage, 0), g.q.at(at.query_begin, head * E), query0, at.queries,
                               g.q.stride, E);
  copy_to_tile<P, N, kThreads>(Tile::other(stage, 1), g.dout.at(at.query_begin, head * V), query0, at.queries,
                               g.dout.stride, V);
  if (i >= 2 * N) return;
  const int row = query0 + i % N;
  copy_async_4(Tile::numbers(stage, i / N, i % N),
               (i < N ? g.lse_HT : g.row_sums_HT) + head * p.tokens + at.query_begin + row, row < at.queries);
}

// Queries past the sequence's end are zeros, and so are their dO, log-sum-exp and row sum, so they add
// nothing. Keys past the end are rows that are not stored.
template <class T, class Tile, bool kCapped>
__global__ void __launch_bounds__(Tile::kThreads) mma_key_value_kernel(AttentionShape p, MmaGradients<T> g) {
  using P = typename Tile::P;
  constexpr int M = Tile::kM, N = Tile::kOther;
  const MmaPlace at(p, p.kv_heads, Tile::kOwn, false);
  if (at.first >= at.keys) return;
  const int E = p.head_size, V = p.value_size;
  copy_to_tile<P, Tile::kOwn, Tile::kThreads>(Tile::own(0), g.k.at(at.key_begin, at.head * E), at.first,
                                              at.keys, g.k.stride, E);
  copy_to_tile<P, Tile::kOwn, Tile::kThreads>(Tile::own(1), g.v.at(at.key_begin, at.head * V), at.first,
                                              at.keys, g.v.stride, V);

  float dk[M][P::kColumns / 8][4], dv[M][P::kColumns / 8][4];
  clear(dk);
  clear(dv);
  const ScoreCap<kCapped> cap{p};
  const int start = at.first_query(at.first), end = at.end_query(at.first + Tile::kOwn - 1);
  int head = at.head * p.group;
  const int heads_end = start < end ? head + p.group : head;
  if (start < end) copy_queries<Tile>(p, g, at, 0, head, start);
  for (int stage = 0, query0 = start; head < heads_end; stage ^= 1) {
    const bool last = query0 + N >= end;
    const int next_head = last ? head + 1 : head, next_query0 = last ? start : query0 + N;
    wait_copies();
    __syncthreads();  // these queries have arrived, and the previous tile has been read
    if (next_head < heads_end) copy_queries<Tile>(p, g, at, stage ^ 1, next_head, next_query0);
    const FragmentPlace<M> fragment;
    const int warp_first = at.first + fragment.warp_row, warp_last = warp_first + 16 * M - 1,
              query_last = query0 + N - 1;
    if (query_last + at.end_shift > warp_first && query0 + at.begin_shift <= warp_last) {
      float weights[M][N / 8][4], slopes[M][N / 8][4], dweights[M][N / 8][4];
      clear(weights);
      multiply_rows<T, P>(weights, Tile::own(0, fragment.warp_row) + P::lane(),
                          Tile::other(stage, 0) + P::lane_of_rows());
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        float lse[2];
        load_shared(Tile::numbers(stage, 0, n * 8 + fragment.column), lse);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float score = cap.of(weights[m][n][i]);
            slopes[m][n][i] = cap.slope(score);
            weights[m][n][i] = exp2_fast(fmaf(score, p.exponent, -kLog2e * lse[i % 2]));
          }
      }
      if (query0 + at.end_shift <= warp_last || query_last + at.begin_shift > warp_first)
        hide<Rows::keys>(weights, warp_first + fragment.row, query0 + fragment.column, at, 0.0f);
      std::uint32_t narrowed[M][N / 16][4];
      narrow_fragments<T>(narrowed, weights);
      if constexpr (kCapped) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[m][n][i] *= slopes[m][n][i];
      }
      multiply_fragments<T, P>(dv, narrowed, Tile::other(stage, 1) + P::lane());
      clear(dweights);
      multiply_rows<T, P>(dweights, Tile::own(1, fragment.warp_row) + P::lane(),
                          Tile::other(stage, 1) + P::lane_of_rows());
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        float row_sum[2];
        load_shared(Tile::numbers(stage, 1, n * 8 + fragment.column), row_sum);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            dweights[m][n][i] = weights[m][n][i] * (dweights[m][n][i] - row_sum[i % 2]);
      }
      narrow_fragments<T>(narrowed, dweights);
      multiply_fragments<T, P>(dk, narrowed, Tile::other(stage, 0) + P::lane());
    }
    head = next_head;
    query0 = next_query0;
  }
  if (start >= end) settle_copies();
  const int warp_row = FragmentPlace<M>().warp_row, warp_first = at.first + warp_row,
            left = at.keys - warp_first;
  put_scaled_rows<T, P>(Tile::own(0, warp_row), dk, p.scale, g.dk, at.key_begin + warp_first, at.head * E,
                        left, E);
  put_scaled_rows<T, P>(Tile::own(1, warp_row), dv, 1.0f, g.dv, at.key_begin + warp_first, at.head * V, left,
                        V);
}

template <class T, class Tile, bool kCapped>
__global__ void __launch_bounds__(Tile::kThreads) mma_query_kernel(AttentionShape p, MmaGradients<T> g) {
  using P = typename Tile::P;
  constexpr int M = Tile::kM, N = Tile::kOther;
  const MmaPlace at(p, p.heads, Tile::kOwn, p.sequences.causal);
  if (at.first >= at.queries) return;
  constexpr int kThreads = Tile::kThreads;
  const int E = p.head_size, V = p.value_size, start = at.first_key(at.first) / N * N;
  const auto end = [&] { return at.end_key(opaque(at.first) + Tile::kOwn - 1); };
  copy_to_tile<P, Tile::kOwn, kThreads>(Tile::own(0), g.q.at(at.query_begin, at.head * E), at.first,
                                        at.queries, g.q.stride, E);
  copy_to_tile<P, Tile::kOwn, kThreads>(Tile::own(1), g.dout.at(at.query_begin, at.head * V), at.first,
                                        at.queries, g.dout.stride, V);
  // Addresses are computed where they are used: keeping them between tiles would take the registers of the
  // sums.
  const auto copy_keys = [&](int stage, int key0) {
    const int begin = opaque(at.key_begin), kv_head = opaque(at.head) / p.group;
    copy_to_tile<P, N, kThreads>(Tile::other(stage, 0), g.k.at(begin, kv_head * E), key0, at.keys, g.k.stride,
                                 E);
    copy_to_tile<P, N, kThreads>(Tile::other(stage, 1), g.v.at(begin, kv_head * V), key0, at.keys, g.v.stride,
                                 V);
  };
  copy_keys(0, start);

  // In shared memory for want of registers: each query's log-sum-exp as an exponent of 2, and its row sum.
  static_assert(Tile::kOwn == kThreads);
  const int own = thread_now(), query = at.first + own;
  const std::int64_t number = at.head * p.tokens + at.query_begin + query;
  const bool inside = query < at.queries;
  store_shared(Tile::own_numbers(own),
               std::bit_cast<std::uint32_t>(inside ? kLog2e * g.lse_HT[number] : 0.0f));
  store_shared(Tile::own_numbers(own) + 4,
               std::bit_cast<std::uint32_t>(inside ? g.row_sums_HT[number] : 0.0f));

  float dq[M][P::kColumns / 8][4];
  clear(dq);
  const ScoreCap<kCapped> cap{p};
  for (int stage = 0, key0 = start; key0 < end(); key0 += N, stage ^= 1) {
    wait_copies();
    __syncthreads();  // these keys have arrived, and the previous tile has been read
    if (key0 + N < end()) copy_keys(stage ^ 1, key0 + N);
    const FragmentPlace<M> fragment;
    const int warp_first = at.first + fragment.warp_row, warp_last = warp_first + 16 * M - 1;
    if (key0 >= at.end_key(warp_last) || key0 + N <= at.first_key(warp_first)) continue;
    float weights[M][N / 8][4], dweights[M][N / 8][4];
    clear(weights);
    multiply_rows<T, P>(weights, Tile::own(0, fragment.warp_row) + P::lane(),
                        Tile::other(stage, 0) + P::lane_of_rows());
    cap.apply(weights);
    clear(dweights);
    multiply_rows<T, P>(dweights, Tile::own(1, fragment.warp_row) + P::lane(),
                        Tile::other(stage, 1) + P::lane_of_rows());
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float numbers[2];
        load_shared(Tile::own_numbers(fragment.warp_row + fragment.row + m * 16 + h * 8), numbers);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            const float score = weights[m][n][i], weight = exp2_fast(fmaf(score, p.exponent, -numbers[0]));
            dweights[m][n][i] = weight * (dweights[m][n][i] - numbers[1]) * cap.slope(score);
          }
      }
    if (key0 + N > at.end_key(warp_first) || key0 < at.first_key(warp_last))
      hide<Rows::queries>(dweights, warp_first + fragment.row, key0 + fragment.column, at, 0.0f);
    std::uint32_t narrowed[M][N / 16][4];
    narrow_fragments<T>(narrowed, dweights);
    multiply_fragments<T, P>(dq, narrowed, Tile::other(stage, 0) + P::lane());
  }
  if (start >= end()) settle_copies();
  const int warp_row = FragmentPlace<M>().warp_row, warp_first = at.first + warp_row;
  put_scaled_rows<T, P>(Tile::own(0, warp_row), dq, p.scale, g.dq, at.query_begin + warp_first, at.head * E,
                        at.queries - warp_first, E);
}

template <class T>
void backward(const Launch& where, const AttentionBackward& a) {
  auto* const row_sums = reinterpret_cast<float*>(where.scratch);
  const MmaGradients<T> g{.q = heads_at<const T>(a.q_THE),
                          .k = heads_at<const T>(a.k_TKE),
                          .v = heads_at<const T>(a.v_TKE),
                          .dout = heads_at<const T>(a.dout_THE),
                          .lse_HT = a.lse_HT.as<float>(),
                          .row_sums_HT = row_sums,
                          .dq = out_heads(a.dq_THE, a.dq_mode),
                          .dk = out_heads(a.dk_TKE, a.dkv_mode),
                          .dv = out_heads(a.dv_TKE, a.dkv_mode)};
  with_columns(a.block.heads, [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value, kLanes = kColumns <= 32 ? 4 : kColumns <= 64 ? 8 : 16;
    using Queries = QueryTile<kColumns>;
    const AttentionShape by_keys = shape_of(a, Side::keys, KeyTile<kColumns, false>::kOwn),
                         by_queries = shape_of(a, Side::queries, Queries::kOwn);
    const std::int64_t tokens = by_queries.tokens, heads = by_queries.heads;
    launch(where, {ceil_div(tokens * heads * kLanes, kAttentionThreads)}, kAttentionThreads,
           "mma_attention_row_sums", mma_row_sums_kernel<T, kLanes>, heads_at<const T>(a.out_THE), g.dout,
           a.out_THE.dtype == DType::f32, row_sums, tokens, by_queries.heads, by_queries.value_size);
    with_softcap(a.block.softcap, [&](auto capped) {
      constexpr bool kCapped = decltype(capped)::value;
      using Keys = KeyTile<kColumns, kCapped>;
      static_assert(Keys::kOwn == KeyTile<kColumns, false>::kOwn);
      launch(where, {.x = by_keys.tiles * by_keys.kv_heads, .shared_bytes = Keys::kBytes}, Keys::kThreads,
             "mma_attention_key_value", mma_key_value_kernel<T, Keys, kCapped>, by_keys, g);
      launch(where, {.x = by_queries.tiles * heads, .shared_bytes = Queries::kBytes}, Queries::kThreads,
             "mma_attention_query", mma_query_kernel<T, Queries, kCapped>, by_queries, g);
    });
  });
}

}  // namespace

bool mma_attention_backward(const Launch& where, const AttentionBackward& a) {
  if (!mma_serves(where, a, a.dout_THE, a.dq_THE, a.dk_TKE, a.dv_TKE)) return false;
  with_half_type(a.q_THE.dtype, [&]<class T>(T) { backward<T>(where, a); });
  return true;
}

}  // namespace trainerd::kernels::cuda
