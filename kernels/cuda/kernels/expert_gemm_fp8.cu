// The GEMMs of experts in FP8 (GemmFormat::fp8). Both operands are rounded first, with the sum innermost, and
// multiplied in tiles of 128 x 128 outputs by warp groups (wgmma): Hopper's mma.sync would widen E4M3 to
// fp16. A stage of 128 summands is one block of each operand: its products are summed by themselves and added
// with the scales of both blocks.

#include "kernels/cuda/kernels/expert_gemm.cuh"
#include "kernels/cuda/kernels/expert_tile.cuh"
#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/warp_group.cuh"
#include "kernels/cuda/launch/fp8_operand.h"

namespace trainerd::kernels::cuda {
namespace {

static_assert(kFp8Block == kTile && kFp8Block == 2 * kDepth);

/// One FP8 operand of a block's product: `outer` rows of `stride` bytes.
struct Fp8Side {
  const std::uint8_t* x;
  std::int64_t stride;
  int outer;
};

/// Starts the copies of the stage that begins at summand `from`. Two bytes are copied as one word.
__device__ inline void copy_fp8(SharedAddress tile, const Fp8Side& side, int from, int depth) {
  copy_to_tile<Deep, kTile, kTileThreads>(tile, reinterpret_cast<const Bf16*>(side.x + from), 0, side.outer,
                                          static_cast<int>(side.stride / 2), (depth - from) / 2);
}

constexpr int kColumns = kTile / 8;  ///< of a warp's 16 rows of outputs, in outputs of 16 x 8

/// Scales of the rows of a lane's outputs, with those of the weight; 0 beyond `rows`.
struct RowScales {
  float row[2];
  __device__ RowScales(const float* scales, int rows, float factor) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = first_row() + h * 8 + (lane_id() >> 2);
      row[h] = place < rows ? factor * scales[place] : 0.0f;
    }
  }
  __device__ void of_columns(int, float (&column)[2]) const { column[0] = column[1] = 1.0f; }
};
/// Scales of the rows and columns of a block's outputs.
struct TileScales : RowScales {
  const float* columns;
  int width;
  __device__ TileScales(const float* rows, int height, const float* of_columns, int wide)
      : RowScales(rows, height, 1.0f), columns(of_columns), width(wide) {}
  __device__ void of_columns(int place, float (&column)[2]) const {
    column[0] = column[1] = 0.0f;
    if (place < width) load<2>(columns + place, column);
  }
};

/// sums = A B^T over `depth` summands, a multiple of 128. `scales_of(block)` has the scales of 128 of them.
template <class ScalesOf>
__device__ inline void multiply_fp8(float (&sums)[1][kColumns][4], const Fp8Side& a, const Fp8Side& b,
                                    int depth, const ScalesOf& scales_of) {
  constexpr int kStep = static_cast<int>(kFp8Block), kOfInstruction = 32, kGroupThreads = 128;
  const SharedAddress shared = dynamic_shared(),
                      of_group = static_cast<SharedAddress>(static_cast<int>(threadIdx.x) / kGroupThreads *
                                                            (kTile / 2) * Deep::kStride);
  const auto start = [&](int stage, int from) {
    copy_fp8(shared + static_cast<SharedAddress>(stage * 2 * kStageBytes), a, from, depth);
    copy_fp8(shared + static_cast<SharedAddress>((stage * 2 + 1) * kStageBytes), b, from, depth);
  };
  clear(sums);
  if (depth > 0) start(0, 0);
  int stage = 0;
  for (int from = 0; from < depth; from += kStep, stage ^= 1) {
    wait_copies();
    show_shared_to_groups();
    __syncthreads();  // the stage has arrived for all, and all have read the other one
    if (from + kStep < depth) start(stage ^ 1, from + kStep);
    const SharedAddress left = shared + static_cast<SharedAddress>(stage * 2 * kStageBytes),
                        right = left + kStageBytes;
    float products[kColumns][4];
    begin_group_products();
#pragma unroll
    for (int k = 0; k < kStep; k += kOfInstruction)
      multiply_group_e4m3(products, left + of_group + static_cast<SharedAddress>(k),
                          right + static_cast<SharedAddress>(k), k > 0);
    end_group_products();
    wait_group_products(products);
    const auto scales = scales_of(from / kStep);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float column[2];
      scales.of_columns(n * 8 + 2 * (lane_id() & 3), column);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[0][n][i] = fmaf(products[n][i], scales.row[i / 2] * column[i % 2], sums[0][n][i]);
    }
  }
}

/// A weight whose rows are the columns of outputs: bytes between rows and between experts, and the same of
/// its scales, in blocks.
struct Fp8Weight {
  const std::uint8_t* w;
  const float* scales;
  std::int64_t stride, step, scale_stride, scale_step;
};

__global__ void __launch_bounds__(kTileThreads)
    expert_rows_fp8_kernel(const std::uint8_t* x, const float* x_scales, std::int64_t rows, Fp8Weight weight,
                           const std::int32_t* first, int experts, int columns, int depth, int column_tiles,
                           Bf16* y) {
  const RowTile tile = find_tile(first, experts, static_cast<int>(blockIdx.x) / column_tiles);
  if (tile.expert < 0) return;
  const int column = static_cast<int>(blockIdx.x) % column_tiles * kTile, used = tile.end - tile.begin;
  const Fp8Side of_rows{x + static_cast<std::int64_t>(tile.begin) * depth, depth, used},
      of_weight{weight.w + tile.expert * weight.step + column * weight.stride, weight.stride,
                columns - column};
  const float* const of_block =
      weight.scales + tile.expert * weight.scale_step + column / kTile * weight.scale_stride;
  float sums[1][kColumns][4];
  multiply_fp8(sums, of_rows, of_weight, depth, [&](int block) {
    return RowScales(x_scales + block * rows + tile.begin, used, of_block[block]);
  });
  put_sums<false>(sums, first_row(), 0, y + static_cast<std::int64_t>(tile.begin) * columns + column, columns,
                  used, columns - column);
}

/// Number of tiles of the experts before `expert`. By a whole warp.
__device__ inline int tiles_before(const std::int32_t* first, int expert) {
  int tiles = 0;
  for (int base = 0; base < expert; base += 32) {
    const int e = base + lane_id();
    tiles += warp_reduce(e < expert ? (first[e + 1] - first[e] + kTile - 1) / kTile : 0, Plus{});
  }
  return tiles;
}

/// Rounded rows, transposed: [width, columns], each tile of an expert's rows in 128 columns, and scales
/// [tiles, width].
struct Fp8Columns {
  const std::uint8_t* x;
  const float* scales;
  int width;
};

template <bool kAdd, class T>
__global__ void __launch_bounds__(kTileThreads)
    expert_wgrad_fp8_kernel(Fp8Columns dy, Fp8Columns x, std::int64_t stride, const std::int32_t* first,
                            int row_tiles, int column_tiles, T* dweight) {
  const int block = static_cast<int>(blockIdx.x), expert = block / (row_tiles * column_tiles),
            row = block / column_tiles % row_tiles * kTile, column = block % column_tiles * kTile;
  const int used = first[expert + 1] - first[expert];
  if (kAdd && used == 0) return;
  const std::int64_t tile = tiles_before(first, expert);
  const Fp8Side rows{dy.x + row * stride + tile * kTile, stride, dy.width - row},
      columns{x.x + column * stride + tile * kTile, stride, x.width - column};
  float sums[1][kColumns][4];
  multiply_fp8(sums, rows, columns, (used + kTile - 1) / kTile * kTile, [&](int of_tile) {
    return TileScales(dy.scales + (tile + of_tile) * dy.width + row, rows.outer,
                      x.scales + (tile + of_tile) * x.width + column, columns.outer);
  });
  put_sums<kAdd>(sums, first_row(), 0,
                 dweight + (static_cast<std::int64_t>(expert) * dy.width + row) * x.width + column, x.width,
                 rows.outer, columns.outer);
}

void check_product(const Launch& where, std::int64_t n, std::int64_t c) {
  base::check(where.target.sm_version == 90, "experts: FP8 on CUDA runs on compute capability 9.0 alone");
  base::check(n % kFp8Block == 0 && c % kFp8Block == 0,
              "experts: with FP8 on CUDA the widths of an expert's weight are multiples of 128");
}

std::uint8_t* bytes_at(const Launch& where, std::int64_t offset) {
  return reinterpret_cast<std::uint8_t*>(where.scratch + offset);
}
float* floats_at(const Launch& where, std::int64_t offset) {
  return reinterpret_cast<float*>(where.scratch + offset);
}

}  // namespace

void expert_fp8_rows(const Launch& where, const char* name, const ExpertRows& a) {
  const std::int64_t rows = a.x.size(0), depth = a.x.size(1), columns = a.y.size(1),
                     experts = a.first_E.numel() - 1, all = a.weight_NC.size(0), inner = a.weight_NC.size(1);
  check_product(where, all / experts, inner);
  base::check(a.y.dtype == DType::bf16, "experts: results are in the dtype of the rows");
  if (rows == 0) return;
  const ExpertRowsScratch place(a.x, a.weight_NC, a.transposed);
  round_to_fp8(where, {.x_RC = a.x,
                       .out = bytes_at(where, place.rows),
                       .scales = floats_at(where, place.rows_scales),
                       .blocks = RoundToFp8::Blocks::rows,
                       .used = a.first_E.rows(experts, 1)});
  round_to_fp8(
      where, {.x_RC = a.weight_NC,
              .out = bytes_at(where, place.weight),
              .scales = floats_at(where, place.weight_scales),
              .blocks = a.transposed ? RoundToFp8::Blocks::squares_transposed : RoundToFp8::Blocks::squares});
  const std::int64_t of_expert = all / experts;
  Fp8Weight weight{
      bytes_at(where, place.weight), floats_at(where, place.weight_scales),       inner, of_expert * inner,
      square_stride(inner),          of_expert / kFp8Block * square_stride(inner)};
  if (a.transposed)
    weight.stride = all, weight.step = of_expert, weight.scale_stride = square_stride(all),
    weight.scale_step = of_expert / kFp8Block;
  const std::int64_t column_tiles = ceil_div(columns, kTile);
  launch(where, {expert_tiles(rows, experts) * column_tiles, 1, kSharedBytes}, kTileThreads, name,
         expert_rows_fp8_kernel, static_cast<const std::uint8_t*>(bytes_at(where, place.rows)),
         static_cast<const float*>(floats_at(where, place.rows_scales)), rows, weight,
         at<std::int32_t>(a.first_E), static_cast<int>(experts), static_cast<int>(columns),
         static_cast<int>(depth), static_cast<int>(column_tiles), at<Bf16>(a.y));
}

void expert_fp8_gradients(const Launch& where, const char* name, const ExpertGradients& a) {
  const std::int64_t n = a.dy_RN.size(1), c = a.x_RC.size(1), experts = a.first_E.numel() - 1;
  check_product(where, n, c);
  const ExpertWgradScratch place(a.dy_RN, a.x_RC, a.first_E);
  const auto rounded = [&](const Tensor& x, std::int64_t out, std::int64_t scales) {
    round_experts_to_fp8(
        where,
        {.x_RC = x, .first_E = a.first_E, .out = bytes_at(where, out), .scales = floats_at(where, scales)});
    return Fp8Columns{bytes_at(where, out), floats_at(where, scales), static_cast<int>(x.size(1))};
  };
  const Fp8Columns dy = rounded(a.dy_RN, place.dy, place.dy_scales),
                   x = rounded(a.x_RC, place.x, place.x_scales);
  const std::int64_t row_tiles = ceil_div(n, kTile), column_tiles = ceil_div(c, kTile);
  with_state_type(a.dweight_NC.dtype, "experts: gradients are fp32 or bf16", [&](auto g) {
    using Out = decltype(g);
    launch(where, {experts * row_tiles * column_tiles, 1, kSharedBytes}, kTileThreads, name,
           a.add ? expert_wgrad_fp8_kernel<true, Out> : expert_wgrad_fp8_kernel<false, Out>, dy, x,
           place.columns, at<std::int32_t>(a.first_E), static_cast<int>(row_tiles),
           static_cast<int>(column_tiles), at<Out>(a.dweight_NC));
  });
}

}  // namespace trainerd::kernels::cuda
