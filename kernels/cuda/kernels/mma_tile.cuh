#pragma once

// Tiles of rows of T (Bf16 or Fp16) in shared memory and the two kinds of products that attention computes
// from them. A warp owns 16 M rows of an output. Its sums are in registers as sums[M][columns / 8][4], in the
// layout of C in mma.cuh.

#include "kernels/cuda/kernels/mma.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {

/// Rows of `Columns` 2-byte elements, at least 128 bytes apart. The 16-byte chunk c of row r is stored at
/// place c xor (r mod 8). So eight rows of one chunk, as ldmatrix reads them, are in different banks, and so
/// are the chunks of one row, as they are copied. A tile begins at a multiple of kStride.
template <int Columns>
struct Panel {
  static_assert(Columns % 16 == 0);
  static constexpr int kColumns = Columns;
  static constexpr int kStride = (Columns + 63) / 64 * 128;  // bytes between rows
  static constexpr int kChunks = kStride / 16;
  static constexpr int bytes(int rows) { return rows * kStride; }
  __device__ static SharedAddress place(int row, int chunk) {
    return static_cast<SharedAddress>(row * kStride + ((chunk ^ (row & 7)) << 4));
  }
  /// The lane's address offset for ldmatrix: row (lane mod 16), chunk (lane / 16).
  __device__ static SharedAddress lane() {
    const int thread = thread_now();
    return place(thread & 15, thread >> 4 & 1);
  }
  /// The same for the right operand of multiply_rows: row (lane mod 8, plus 8 for the second half of the
  /// warp), chunk (lane / 8 mod 2). So both matrices of eight rows arrive in neighbouring registers, which is
  /// how mma takes B.
  __device__ static SharedAddress lane_of_rows() {
    const int thread = thread_now();
    return place((thread & 7) | (thread >> 1 & 8), thread >> 3 & 1);
  }
  /// Address of the block at rows 16 i and columns 16 j: matrices [0, 8) x [0, 8), [8, 16) x [0, 8), [0, 8) x
  /// [8, 16), [8, 16) x [8, 16).
  __device__ static SharedAddress block(SharedAddress tile_and_lane, int i, int j) {
    return (tile_and_lane ^ static_cast<SharedAddress>(j << 5)) +
           static_cast<SharedAddress>(i * 16 * kStride);
  }
};

/// Starts to copy rows [first, first + Rows) of one head into a tile, with zeros past `length` rows and
/// `width` columns. `x` is the head's first element in row 0, `row_elements` the elements between rows.
template <class P, int Rows, int Threads, class T>
__device__ inline void copy_to_tile(SharedAddress tile, const T* x, int first, int length, int row_elements,
                                    int width) {
  static_assert(sizeof(T) == 2);
  constexpr int kStep = Threads / P::kChunks;  // rows copied at once
  static_assert(Threads % P::kChunks == 0 && Rows % kStep == 0);
  const int thread = thread_now(), row = thread / P::kChunks, chunk = thread % P::kChunks;
  if (chunk * 8 >= P::kColumns) return;
  // Multiplies for each row: keeping a pointer per row from tile to tile would take the registers of the
  // sums.
  const int from = opaque(first + row), left = chunk * 8 < width ? length - from : 0;
#pragma unroll
  for (int i = 0; i < Rows / kStep; ++i)
    copy_async_16(tile + P::place(row + i * kStep, chunk),
                  x + static_cast<std::int64_t>(from + i * kStep) * row_elements + chunk * 8,
                  i * kStep < left);
}

/// sums[16 M x 8 N] += X Y^T over all columns. X is the warp's 16 M rows, with `lane()` in its address, Y is
/// 8 N rows, with `lane_of_rows()`.
template <class T, class P, int M, int N>
__device__ inline void multiply_rows(float (&sums)[M][N][4], SharedAddress x, SharedAddress y) {
  static_assert(N % 2 == 0);
#pragma unroll
  for (int k = 0; k < P::kColumns / 16; ++k) {
    std::uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) load_matrices(a[m], P::block(x, m, k));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, P::block(y, n / 2, k));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add<T>(sums[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Converts a product's result [16 M x 8 N] to T as the left operand of the next one: a[m][k] are the
/// fragments of A for columns [16 k, 16 k + 16).
template <class T, int M, int N>
__device__ inline void narrow_fragments(std::uint32_t (&a)[M][N / 2][4], const float (&c)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        a[m][n / 2][n % 2 * 2 + h] = pack_pair<T>(c[m][n][2 * h], c[m][n][2 * h + 1]);
}

/// sums[16 M x columns] += W Y. W [16 M x 16 K] is in registers. Y is 16 K rows; its address includes
/// `lane()`.
template <class T, class P, int M, int K>
__device__ inline void multiply_fragments(float (&sums)[M][P::kColumns / 8][4],
                                          const std::uint32_t (&w)[M][K][4], SharedAddress y) {
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int n = 0; n < P::kColumns / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, P::block(y, k, n / 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add<T>(sums[m][n], w[m][k], b[0], b[1]);
        multiply_add<T>(sums[m][n + 1], w[m][k], b[2], b[3]);
      }
    }
}

/// Writes factor[m][h] * sums to the first `left` of the warp's rows, 16 bytes per store; h is 0 for
/// row g and 1 for row g + 8. The data passes through `tile`, 16 M rows of shared memory that only this warp
/// reads.
template <class P, int M, class T>
__device__ inline void store_rows(SharedAddress tile, const float (&sums)[M][P::kColumns / 8][4],
                                  const float (&factor)[M][2], T* x, int left, int row_elements, int width) {
  const int g = lane_id() >> 2, t = lane_id() & 3;
  __syncwarp();  // wait for the last readers of the tile
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < P::kColumns / 8; ++n)
        store_shared(tile + P::place(m * 16 + h * 8 + g, n) + static_cast<SharedAddress>(4 * t),
                     pack_pair<T>(factor[m][h] * sums[m][n][2 * h], factor[m][h] * sums[m][n][2 * h + 1]));
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * M * P::kChunks / 32; ++i) {
    const int place = lane_id() + i * 32, row = place / P::kChunks, chunk = place % P::kChunks;
    if (row >= left || chunk * 8 >= width) continue;
    const uint4 w = load_shared_16(tile + P::place(row, chunk));
    store_words(x + static_cast<std::int64_t>(row) * row_elements + chunk * 8, w.x, w.y, w.z, w.w);
  }
}

template <int M, int N>
__device__ inline void clear(float (&x)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[m][n][i] = 0.0f;
}

}  // namespace trainerd::kernels::cuda
