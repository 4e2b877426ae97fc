// Rounding of GEMM operands to FP8. Floor = bytes / memory bandwidth, 3 per element: 2 read and 1 written.

#include "kernels/cuda/kernels/expert_tile.cuh"
#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"
#include "kernels/cuda/launch/fp8_operand.h"
#include "kernels/tensor/fp8.h"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kFp8Threads = 256;
constexpr int kRun = 8;                                    ///< elements that a thread reads at a time
constexpr int kRuns = static_cast<int>(kFp8Block) / kRun;  ///< threads for a row of a block

/// The bits of four numbers in E4M3, the first in the lowest byte. Each is at most 448, or NaN.
__device__ inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint32_t bits;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(bits)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return bits;
#else
  const auto bits_of = [](float x) { return e4m3_bits(round_to_e4m3(x)); };
  return bits_of(a) | bits_of(b) << 8 | bits_of(c) << 16 | bits_of(d) << 24;
#endif
}

/// The largest of fp32 bits without the sign: the order of magnitudes, with NaN as the largest.
struct LargerBits {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

__device__ inline std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }

/// Blocks of 1 x 128. Half a warp rounds one.
__global__ void __launch_bounds__(kFp8Threads)
    round_rows_kernel(const Bf16* x, std::uint8_t* out, float* scales, std::int64_t rows,
                      std::int64_t columns, std::int64_t blocks, const std::int32_t* used) {
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * kFp8Threads + threadIdx.x) / kRuns,
                     row = group / blocks, block = group % blocks,
                     column = block * kFp8Block + threadIdx.x % kRuns * kRun;
  const bool mine = row < (used != nullptr ? *used : rows) && column < columns;
  float v[kRun] = {};
  if (mine) load<kRun>(x + row * columns + column, v);
  std::uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kRun; ++k) largest = LargerBits{}(largest, magnitude(v[k]));
#pragma unroll
  for (int offset = kRuns / 2; offset > 0; offset /= 2)
    largest = LargerBits{}(largest, __shfl_xor_sync(kFullWarp, largest, offset));
  if (!mine) return;
  const Fp8Scale scale = fp8_scale(largest);
#pragma unroll
  for (int k = 0; k < kRun; ++k) v[k] *= scale.factor;
  store_words(out + row * columns + column, pack_e4m3(v[0], v[1], v[2], v[3]),
              pack_e4m3(v[4], v[5], v[6], v[7]));
  if (threadIdx.x % kRuns == 0) scales[block * rows + row] = scale.inverse;
}

constexpr int kSide = static_cast<int>(kFp8Block);
constexpr int kRunThreads = kFp8Threads / kRuns;  ///< threads of a run of columns
constexpr int kQuads = kSide / 4 / kRunThreads;   ///< quads of rows of a thread
constexpr int kStride =
    kSide / 4 + 1;  ///< words between rows of the transposed tile, without bank conflicts of its reads

/// A tile of 128 x 128 of the rows before `rows` of x [.., columns], and where it goes.
struct RoundTile {
  const Bf16* x;
  std::int64_t rows, columns, first_row, first_column;
  std::uint8_t* out;
  float* scales;          ///< of the tile: the first of its columns', or one
  std::int64_t stride;    ///< transposed: bytes between columns
  std::int64_t out_row;   ///< transposed: place of the tile's first row in a column
  std::int64_t out_rows;  ///< transposed: rows to write, in whole runs of 16
};

/// A block of threads rounds a tile: with one scale, or one for each column.
template <bool kSquare, bool kTransposed>
__device__ inline void round_tile(const RoundTile& a) {
  static_assert(kSquare || kTransposed, "scales of columns are for a transposed operand");
  __shared__ std::uint32_t largest[kRunThreads][kSide];
  __shared__ std::uint32_t of_column[kSide];
  __shared__ std::uint32_t tile[kSide * kStride];  // [column][quad of rows]
  const int run = static_cast<int>(threadIdx.x) % kRuns, part = static_cast<int>(threadIdx.x) / kRuns;
  const std::int64_t first_row = a.first_row, first_column = a.first_column, rows = a.rows,
                     columns = a.columns, column = first_column + run * kRun;
  Raw<Bf16, kRun> raw[kQuads * 4] = {};
#pragma unroll
  for (int i = 0; i < kQuads * 4; ++i) {
    const std::int64_t row = first_row + (i / 4 * kRunThreads + part) * 4 + i % 4;
    if (row < rows && column < columns) raw[i] = fetch<kRun>(a.x + row * columns + column);
  }
  std::uint32_t mine[kRun] = {};
#pragma unroll
  for (int i = 0; i < kQuads * 4; ++i) {
    float v[kRun];
    unpack<kRun>(raw[i], v);
#pragma unroll
    for (int k = 0; k < kRun; ++k) mine[k] = LargerBits{}(mine[k], magnitude(v[k]));
  }
#pragma unroll
  for (int k = 0; k < kRun; ++k) largest[part][run * kRun + k] = mine[k];
  __syncthreads();
  if (threadIdx.x < kSide) {
    std::uint32_t most = 0;
#pragma unroll
    for (int p = 0; p < kRunThreads; ++p) most = LargerBits{}(most, largest[p][threadIdx.x]);
    of_column[threadIdx.x] = most;
    if constexpr (!kSquare)
      if (first_column + threadIdx.x < columns) a.scales[threadIdx.x] = fp8_scale(most).inverse;
  }
  __syncthreads();
  float factor[kRun];
  if constexpr (kSquare) {
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kSide / 32; ++i) most = LargerBits{}(most, of_column[i * 32 + lane_id()]);
    const Fp8Scale scale = fp8_scale(warp_reduce(most, LargerBits{}));
#pragma unroll
    for (int k = 0; k < kRun; ++k) factor[k] = scale.factor;
    if (threadIdx.x == 0) *a.scales = scale.inverse;
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) factor[k] = fp8_scale(of_column[run * kRun + k]).factor;
  }
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    float v[4][kRun];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unpack<kRun>(raw[quad * 4 + i], v[i]);
#pragma unroll
      for (int k = 0; k < kRun; ++k) v[i][k] *= factor[k];
    }
    const int rows_of_quad = quad * kRunThreads + part;
    if constexpr (kTransposed) {
#pragma unroll
      for (int k = 0; k < kRun; ++k)
        tile[(run * kRun + k) * kStride + rows_of_quad] = pack_e4m3(v[0][k], v[1][k], v[2][k], v[3][k]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = first_row + rows_of_quad * 4 + i;
        if (row < rows && column < columns)
          store_words(a.out + row * columns + column, pack_e4m3(v[i][0], v[i][1], v[i][2], v[i][3]),
                      pack_e4m3(v[i][4], v[i][5], v[i][6], v[i][7]));
      }
    }
  }
  if constexpr (kTransposed) {
    __syncthreads();
    constexpr int kParts = kSide / 16;  // 16 rows of a column are one store
#pragma unroll
    for (int i = 0; i < kSide * kParts / kFp8Threads; ++i) {
      const int item = i * kFp8Threads + static_cast<int>(threadIdx.x), c = item / kParts, p = item % kParts;
      const std::uint32_t* words = tile + c * kStride + p * 4;
      if (first_column + c < columns && p * 16 < a.out_rows)
        store_words(a.out + (first_column + c) * a.stride + a.out_row + p * 16, words[0], words[1], words[2],
                    words[3]);
    }
  }
}

template <bool kSquare, bool kTransposed>
__global__ void __launch_bounds__(kFp8Threads)
    round_tile_kernel(const Bf16* x, std::uint8_t* out, float* scales, std::int64_t rows,
                      std::int64_t columns) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kSide,
                     column = static_cast<std::int64_t>(blockIdx.x) * kSide;
  const std::int64_t outer = kTransposed ? blockIdx.x : blockIdx.y,
                     inner = kTransposed ? blockIdx.y : blockIdx.x;
  float* const of_tile = kSquare ? scales + outer * square_stride(kTransposed ? rows : columns) + inner
                                 : scales + blockIdx.y * columns + column;
  round_tile<kSquare, kTransposed>({x, rows, columns, row, column, out, of_tile, rows, row, rows - row});
}

__global__ void __launch_bounds__(kFp8Threads)
    round_experts_kernel(const Bf16* x, const std::int32_t* first, int experts, std::int64_t columns,
                         std::int64_t stride, std::uint8_t* out, float* scales) {
  const RowTile tile = find_tile(first, experts, static_cast<int>(blockIdx.y));
  if (tile.expert < 0) return;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kSide, place = blockIdx.y;
  round_tile<false, true>({x, tile.end, columns, tile.begin, column, out, scales + place * columns + column,
                           stride, place * kSide, kSide});
}

}  // namespace

void round_to_fp8(const Launch& where, const RoundToFp8& a) {
  const std::int64_t rows = a.x_RC.size(0), columns = a.x_RC.size(1);
  const bool by_rows = a.blocks == RoundToFp8::Blocks::rows;
  base::check(
      a.x_RC.dtype == DType::bf16 && (by_rows || rows % kFp8Multiple == 0) && columns % kFp8Multiple == 0,
      "an FP8 operand is rounded from bf16, and its sizes are multiples of 16");
  const auto* x = at<Bf16>(a.x_RC);
  const auto run = [&](auto kernel) {
    launch(where, {fp8_blocks(columns), fp8_blocks(rows)}, kFp8Threads, "round_to_fp8", kernel, x, a.out,
           a.scales, rows, columns);
  };
  switch (a.blocks) {
    case RoundToFp8::Blocks::rows:
      return launch(where, {ceil_div(rows * fp8_blocks(columns), kFp8Threads / kRuns)}, kFp8Threads,
                    "round_to_fp8", round_rows_kernel, x, a.out, a.scales, rows, columns, fp8_blocks(columns),
                    a.used.defined() ? at<std::int32_t>(a.used) : nullptr);
    case RoundToFp8::Blocks::columns_transposed: return run(round_tile_kernel<false, true>);
    case RoundToFp8::Blocks::squares: return run(round_tile_kernel<true, false>);
    case RoundToFp8::Blocks::squares_transposed: return run(round_tile_kernel<true, true>);
  }
}

void round_experts_to_fp8(const Launch& where, const RoundExpertsToFp8& a) {
  const std::int64_t rows = a.x_RC.size(0), columns = a.x_RC.size(1), experts = a.first_E.numel() - 1,
                     tiles = expert_tiles(rows, experts);
  base::check(a.x_RC.dtype == DType::bf16 && columns % kFp8Multiple == 0,
              "an FP8 operand is rounded from bf16, and its sizes are multiples of 16");
  launch(where, {fp8_blocks(columns), rows == 0 ? 0 : tiles}, kFp8Threads, "round_experts_to_fp8",
         round_experts_kernel, at<Bf16>(a.x_RC), at<std::int32_t>(a.first_E), static_cast<int>(experts),
         columns, tiles * kFp8Block, a.out, a.scales);
}

}  // namespace trainerd::kernels::cuda
