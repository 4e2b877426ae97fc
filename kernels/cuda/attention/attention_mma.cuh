#pragma once

// Common parts of the forward and backward of our own attention on tensor cores (mma.cuh). T is Bf16 or Fp16;
// head sizes are multiples of 8. A block owns rows of one head of one sequence and loops over the other side
// in tiles.

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/kernels/math.cuh"
#include "kernels/cuda/kernels/mma_tile.cuh"
#include "kernels/cuda/launch/attention_problem.h"

namespace trainerd::kernels::cuda {

/// True if these kernels support the call and its heads begin at 16-byte boundaries. Addresses are unknown at
/// planning time, so they are checked here.
template <class Args, class... Views>
bool mma_serves(const Launch& where, const Args& a, const Views&... views) {
  const auto begins = [](const HeadView& x) { return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0; };
  return tensor_cores_serve(a, where.target, views...) && begins(a.q_THE) && begins(a.k_TKE) &&
         begins(a.v_TKE) && begins(a.out_THE) && (begins(views) && ...);
}

/// A block's head, sequence and first row. Blocks are ordered by sequence, tile of rows, head, so that
/// neighbours share keys and values in L2. `reversed` starts with the last rows: with a causal mask they see
/// the most keys, and blocks with little work fill the end.
struct MmaPlace : SequencePlace {
  int head = 0, first = 0;  ///< `first` is past the sequence's rows if it has no such tile
  __device__ MmaPlace(const AttentionShape& p, int heads, int rows, bool reversed)
      : MmaPlace(p, TilePlace(p, static_cast<int>(blockIdx.x) / heads), heads, rows, reversed) {}

 private:
  __device__ MmaPlace(const AttentionShape& p, const TilePlace& at, int heads, int rows, bool reversed)
      : SequencePlace(p.sequences, at.sequence), head(static_cast<int>(blockIdx.x) % heads) {
    const int tiles = (p.bounds[at.sequence + 1] - p.bounds[at.sequence] + rows - 1) / rows;
    first = (reversed && at.tile < tiles ? tiles - 1 - at.tile : at.tile) * rows;
  }
};

/// The lane's first row and column of C (mma.cuh), and its warp's first row within the block, with M
/// fragments per warp.
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

/// For blocks that see nothing of the other side: waits until the block's own rows are loaded, so that their
/// memory may be overwritten.
__device__ inline void settle_copies() {
  wait_copies();
  __syncthreads();
}

__device__ inline void load_pair(const float* p, float (&x)[2]) {
  const uint2 w = *reinterpret_cast<const uint2*>(p);
  x[0] = std::bit_cast<float>(w.x);
  x[1] = std::bit_cast<float>(w.y);
}
template <class T>
__device__ inline void load_pair(const T* p, float (&x)[2]) {
  const std::uint32_t w = *reinterpret_cast<const std::uint32_t*>(p);
  x[0] = widen_half<T>(w, false);
  x[1] = widen_half<T>(w, true);
}
__device__ inline void store_pair(float* p, float x, float y) {
  store_words(p, std::bit_cast<std::uint32_t>(x), std::bit_cast<std::uint32_t>(y));
}

/// Writes the first `left` of the warp's rows of `out`, starting at `row`: factor * sums, plus kept * the
/// previous value if `out` accumulates. T goes through store_rows; fp32 is stored from registers, 32 bytes
/// of a row at a time.
template <class T, class P, int M>
__device__ inline void put_rows(SharedAddress tile, float (&sums)[M][P::kColumns / 8][4],
                                float (&factor)[M][2], const float (&kept)[M][2], const OutHeads& out,
                                std::int64_t row, int column, int left, int width) {
  const FragmentPlace<M> fragment;
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = m * 16 + h * 8 + fragment.row;
        if (r >= left) continue;
#pragma unroll
        for (int n = 0; n < P::kColumns / 8; ++n)
          if (n * 8 < width) body(m, h, n, r, n * 8 + fragment.column);
      }
  };
  if (out.adds) {
    each([&](int m, int h, int n, int r, int c) {
      float* const x = sums[m][n] + 2 * h;
      float old[2];
      if (out.fp32) load_pair(out.as<float>().at(row + r, column + c), old);
      else load_pair(out.as<T>().at(row + r, column + c), old);
#pragma unroll
      for (int i = 0; i < 2; ++i) x[i] = blended(factor[m][h], x[i], kept[m][h], old[i]);
    });
#pragma unroll
    for (int m = 0; m < M; ++m) factor[m][0] = factor[m][1] = 1.0f;
  }
  if (out.fp32)
    each([&](int m, int h, int n, int r, int c) {
      store_pair(out.as<float>().at(row + r, column + c), factor[m][h] * sums[m][n][2 * h],
                 factor[m][h] * sums[m][n][2 * h + 1]);
    });
  else store_rows<P>(tile, sums, factor, out.as<T>().at(row, column), left, out.stride, width);
}

/// For gradients: scale * sums, assigned or accumulated.
template <class T, class P, int M>
__device__ inline void put_scaled_rows(SharedAddress tile, float (&sums)[M][P::kColumns / 8][4], float scale,
                                       const OutHeads& out, std::int64_t row, int column, int left,
                                       int width) {
  float factor[M][2], kept[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    factor[m][0] = factor[m][1] = scale;
    kept[m][0] = kept[m][1] = 1.0f;
  }
  put_rows<T, P>(tile, sums, factor, kept, out, row, column, left, width);
}

/// The softcap of scores. Kernels without one are compiled separately, because it needs registers. Its
/// numbers are read from the kernel's parameters, which takes none.
template <bool kCapped>
struct ScoreCap {
  const AttentionShape& p;
  __device__ float of(float score) const { return kCapped ? tanh_for<Bf16>(score * p.inner) : score; }
  /// The derivative with respect to the plain score, divided by `scale`.
  __device__ static float slope(float score) { return kCapped ? 1.0f - score * score : 1.0f; }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4]) const {
    if constexpr (kCapped) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) x[m][n][i] = of(x[m][n][i]);
    }
  }
};

/// Calls `f` with a constant that tells whether scores are capped.
template <class F>
void with_softcap(float softcap, const F& f) {
  if (softcap > 0.0f) f(std::true_type{});
  else f(std::false_type{});
}

/// What the rows of a fragment represent; its columns are the other side.
enum class Rows : std::uint8_t { queries, keys };

/// Sets the elements of queries and keys that are masked to `value`. `row` and `column` are those of
/// x[0][0][0].
template <Rows kRows, int M, int N>
__device__ inline void hide(float (&x)[M][N][4], int row, int column, const SequencePlace& at, float value) {
  constexpr int kSign = kRows == Rows::queries ? 1 : -1;
  // Offset from the first key that the query sees. It is unsigned, so a key before that becomes a large
  // number.
  const int place = kSign * (column - row) - at.begin_shift,
            left = kRows == Rows::queries ? at.keys - column : 0;
  const auto seen = static_cast<unsigned>(at.end_shift - at.begin_shift);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = m * 16 + i / 2 * 8, c = n * 8 + i % 2;
        if (static_cast<unsigned>(place + kSign * (c - r)) >= seen || (kRows == Rows::queries && c >= left))
          x[m][n][i] = value;
      }
}

/// Calls `f` with the number of columns of the smallest panel that holds a head, as a constant.
template <class F>
void with_columns(const HeadGeometry& heads, const F& f) {
  const std::int64_t head_size = std::max(heads.head_size, heads.values_size());
  if (head_size <= 32) return f(std::integral_constant<int, 32>{});
  if (head_size <= 64) return f(std::integral_constant<int, 64>{});
  if (head_size <= 96) return f(std::integral_constant<int, 96>{});
  f(std::integral_constant<int, 128>{});
}

// Defined in attention_mma.cu and attention_mma_backward.cu. They return false and launch nothing if they do
// not support the problem.
bool mma_attention_forward(const Launch&, const AttentionForward&);
bool mma_attention_backward(const Launch&, const AttentionBackward&);

}  // namespace trainerd::kernels::cuda
