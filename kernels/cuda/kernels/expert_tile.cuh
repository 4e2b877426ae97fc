#pragma once

// Tiles of the products of experts: where a block's outputs lie, and how a warp writes them. Tiles have 128 x
// 128 outputs. Where an expert's rows begin is on the device only, so a grid has blocks for the largest
// number of tiles; each finds its own, and those without one end at once.

#include "kernels/cuda/kernels/mma_tile.cuh"
#include "kernels/cuda/kernels/reduce.cuh"

namespace trainerd::kernels::cuda {

constexpr int kTile = 128;  ///< rows and columns of a block's outputs
constexpr int kDepth = 64;  ///< 2-byte words of a row in a stage
constexpr int kTileThreads = 256;

using Deep = Panel<kDepth>;  ///< kTile rows of kDepth summands
constexpr int kStageBytes = kTile * kDepth * 2;
static_assert(Deep::bytes(kTile) == kStageBytes);
constexpr int kSharedBytes = 4 * kStageBytes;  // two stages of both operands

/// First row of a warp's 16 rows of a tile that two warp groups compute.
__device__ inline int first_row() { return warp_id() * 16; }

/// One operand of a block's product: `outer` rows or columns of outputs, of a matrix with rows of `stride`
/// elements.
template <class T>
struct TileSide {
  const T* x;
  std::int64_t stride;
  int outer;
};

/// Rows of an expert that a block computes.
struct RowTile {
  int expert = -1, begin = 0, end = 0;
};

/// The tile with number `index` of all experts' tiles; expert -1 if there is none. By a whole warp, whose
/// lanes take an expert each.
__device__ inline RowTile find_tile(const std::int32_t* first, int experts, int index) {
  for (int base = 0; base < experts; base += 32) {
    const int e = base + lane_id(), begin = e < experts ? first[e] : 0, end = e < experts ? first[e + 1] : 0,
              tiles = (end - begin + kTile - 1) / kTile;
    int through = tiles;  // tiles of the experts from `base` to this one
    for (int offset = 1; offset < 32; offset *= 2) {
      const int before = __shfl_up_sync(kFullWarp, through, offset);
      if (lane_id() >= offset) through += before;
    }
    const int owner = warp_reduce(through <= index ? 1 : 0, Plus{});
    const auto of_lane = [&](int lane, int value) {
      return warp_reduce(lane_id() == lane ? value : 0, Plus{});
    };
    if (owner < 32)
      return {base + owner, of_lane(owner, begin + (index - (through - tiles)) * kTile), of_lane(owner, end)};
    index -= of_lane(31, through);
  }
  return {};
}

template <class T>
struct TileSides {
  TileSide<T> rows, columns;
};
/// Operands of y = x w for the outputs of `tile` from `column` on: w of its expert is [columns, depth]
/// (`WDeep`), or [depth, columns].
template <bool WDeep, class T>
__device__ inline TileSides<T> sides_of_rows(const T* x, const T* weight, const RowTile& tile, int column,
                                             int columns, int depth) {
  const std::int64_t of_expert = static_cast<std::int64_t>(tile.expert) * columns * depth;
  return {{x + static_cast<std::int64_t>(tile.begin) * depth, depth, tile.end - tile.begin},
          {weight + of_expert + (WDeep ? static_cast<std::int64_t>(column) * depth : column),
           WDeep ? depth : columns, columns - column}};
}
/// Operands of dy^T x [n, c] for the outputs from `row` and `column` on, over the rows from `begin` on.
template <class T>
__device__ inline TileSides<T> sides_of_gradients(const T* dy, const T* x, int begin, int row, int n,
                                                  int column, int c) {
  return {{dy + static_cast<std::int64_t>(begin) * n + row, n, n - row},
          {x + static_cast<std::int64_t>(begin) * c + column, c, c - column}};
}

template <class T>
__device__ inline void put_pair(T* to, float x, float y) {
  *reinterpret_cast<std::uint32_t*>(to) = pack_pair<T>(x, y);
}
__device__ inline void put_pair(float* to, float x, float y) {
  const float pair[2] = {x, y};
  store<2>(to, pair);
}
template <class T>
__device__ inline void add_pair(const T* from, float (&pair)[2]) {
  const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(from);
  pair[0] += widen_half<T>(bits, false);
  pair[1] += widen_half<T>(bits, true);
}
__device__ inline void add_pair(const float* from, float (&pair)[2]) {
  float before[2];
  load<2>(from, before);
  pair[0] += before[0];
  pair[1] += before[1];
}

/// Writes a warp's outputs, whose first row and column within the tile are given, as far as they are among
/// the first `rows` rows and `columns` columns, an even number. What they are added to is read for many
/// outputs at once: nothing else on the multiprocessor hides the time of a read.
template <bool kAdd, int M, int N, class T>
__device__ inline void put_sums(const float (&sums)[M][N][4], int first_row, int first_column, T* to,
                                std::int64_t stride, int rows, int columns) {
  const int g = lane_id() >> 2, t = lane_id() & 3;
  constexpr int kBatch = N > 16 ? 16 : 8;
  static_assert(N % kBatch == 0);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + m * 16 + h * 8 + g;
      if (row >= rows) continue;
      T* const line = to + row * stride;
#pragma unroll
      for (int first = 0; first < N; first += kBatch) {
        float pairs[kBatch][2];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int column = first_column + (first + i) * 8 + 2 * t;
          pairs[i][0] = sums[m][first + i][2 * h], pairs[i][1] = sums[m][first + i][2 * h + 1];
          if (kAdd && column < columns) add_pair(line + column, pairs[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int column = first_column + (first + i) * 8 + 2 * t;
          if (column < columns) put_pair(line + column, pairs[i][0], pairs[i][1]);
        }
      }
    }
}

}  // namespace trainerd::kernels::cuda
