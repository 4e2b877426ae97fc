// The GEMMs of experts in bf16 and fp16 on Hopper: tiles of 128 x 256 outputs by two warp groups (wgmma),
// which read both operands from shared memory in the order in which they lie in memory. Four stages of 64
// summands: while the products of one run, copies of the next two are on their way.

#include "kernels/cuda/kernels/expert_gemm.cuh"
#include "kernels/cuda/kernels/expert_tile.cuh"
#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/tile_order.cuh"
#include "kernels/cuda/kernels/warp_group.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kWide = 256;               ///< columns of a block's outputs
constexpr int kWideColumns = kWide / 8;  ///< in outputs of 16 x 8
// Of four stages one is multiplied, two are copied, and the slower group may still multiply the one before.
constexpr int kStages = 4, kAhead = 2;
constexpr int kSummands = 16;  ///< of an instruction
constexpr int kLeftBytes = kTile * Deep::kStride, kStage = kLeftBytes + kWide * Deep::kStride;
constexpr int kGroupSharedBytes = kStages * kStage;
static_assert(Deep::kStride == 128 && Deep::bytes(kDepth) == kOuterPanelBytes &&
              kGroupSharedBytes <= 227 << 10);

/// Starts the copies of `Outer` rows or columns of the stage that begins at summand `from`.
template <bool IsDeep, int Outer, class T>
__device__ inline void copy_side(SharedAddress tile, const TileSide<T>& side, int from, int depth) {
  const int stride = static_cast<int>(side.stride);
  if constexpr (IsDeep) {
    copy_to_tile<Deep, Outer, kTileThreads>(tile, side.x + from, 0, side.outer, stride, depth - from);
  } else {
#pragma unroll
    for (int outer = 0; outer < Outer; outer += kDepth)
      copy_to_tile<Deep, kDepth, kTileThreads>(tile + static_cast<SharedAddress>(outer * Deep::kStride),
                                               side.x + outer, from, depth, stride, side.outer - outer);
  }
}

/// sums = A B over `depth` summands. A is rows by depth, or depth by rows if `ADeep` is false; B is columns
/// by depth, or depth by columns.
template <bool ADeep, bool BDeep, class T>
__device__ inline void multiply_tile(float (&sums)[1][kWideColumns][4], const TileSide<T>& a,
                                     const TileSide<T>& b, int depth) {
  // Bytes from one instruction's summands to the next one's, and from one group's rows to the other's.
  constexpr int kDeepStep = kSummands * 2, kOuterStep = kSummands * Deep::kStride,
                kGroupStep = kTile / 2 * Deep::kStride;
  static_assert(kGroupStep == kOuterPanelBytes);
  const SharedAddress shared = dynamic_shared(),
                      of_group = static_cast<SharedAddress>(static_cast<int>(threadIdx.x) / 128 * kGroupStep);
  const int stages = (depth + kDepth - 1) / kDepth;
  const auto place = [&](int stage) { return shared + static_cast<SharedAddress>(stage % kStages * kStage); };
  const auto start = [&](int stage) {
    if (stage < stages) {
      copy_side<ADeep, kTile>(place(stage), a, stage * kDepth, depth);
      copy_side<BDeep, kWide>(place(stage) + kLeftBytes, b, stage * kDepth, depth);
    }
    group_copies();
  };
  clear(sums);
#pragma unroll
  for (int stage = 0; stage < kAhead; ++stage) start(stage);
  for (int stage = 0; stage < stages; ++stage) {
    wait_copies_but<kAhead - 1>();
    show_shared_to_groups();
    __syncthreads();  // the stage has arrived for all, and both groups are done with the one before the last
    const SharedAddress left = place(stage) + of_group, right = place(stage) + kLeftBytes;
    begin_group_products();
#pragma unroll
    for (int k = 0; k < kDepth / kSummands; ++k)
      multiply_group<T, ADeep, BDeep>(
          sums[0], left + static_cast<SharedAddress>(k * (ADeep ? kDeepStep : kOuterStep)),
          right + static_cast<SharedAddress>(k * (BDeep ? kDeepStep : kOuterStep)));
    end_group_products();
    start(stage + kAhead);
    wait_group_products_but<1>();
  }
  wait_group_products(sums[0]);
}

/// y[rows of e, n] = x[rows of e, depth] w: w of expert e is [n, depth] (`WDeep`), or [depth, n].
template <class T, bool WDeep>
__global__ void __launch_bounds__(kTileThreads, 1)
    expert_group_rows_kernel(const T* x, const T* weight, const std::int32_t* first, int experts, int columns,
                             int depth, int column_tiles, T* y) {
  const RowTile tile = find_tile(first, experts, static_cast<int>(blockIdx.x) / column_tiles);
  if (tile.expert < 0) return;
  const int column = static_cast<int>(blockIdx.x) % column_tiles * kWide;
  const TileSides<T> sides = sides_of_rows<WDeep>(x, weight, tile, column, columns, depth);
  float sums[1][kWideColumns][4];
  multiply_tile<true, WDeep>(sums, sides.rows, sides.columns, depth);
  put_sums<false>(sums, first_row(), 0, y + static_cast<std::int64_t>(tile.begin) * columns + column, columns,
                  tile.end - tile.begin, columns - column);
}

/// dw of expert e [n, c] (+)= dy[rows of e, n]^T x[rows of e, c].
template <class T, bool kAdd, class Out>
__global__ void __launch_bounds__(kTileThreads, 1)
    expert_group_wgrad_kernel(const T* dy, const T* x, const std::int32_t* first, int n, int c, int row_tiles,
                              int column_tiles, Out* dweight) {
  const int tiles = row_tiles * column_tiles, block = static_cast<int>(blockIdx.x), expert = block / tiles;
  const TilePlace place = place_of_tile(block % tiles, row_tiles, column_tiles);
  const int row = place.row * kTile, column = place.column * kWide;
  const int begin = first[expert], depth = first[expert + 1] - begin;
  if (kAdd && depth == 0) return;
  const TileSides<T> sides = sides_of_gradients(dy, x, begin, row, n, column, c);
  float sums[1][kWideColumns][4];
  multiply_tile<false, false>(sums, sides.rows, sides.columns, depth);
  put_sums<kAdd>(sums, first_row(), 0, dweight + (static_cast<std::int64_t>(expert) * n + row) * c + column,
                 c, n - row, c - column);
}

}  // namespace

void expert_group_rows(const Launch& where, const char* name, const ExpertRows& a) {
  const std::int64_t rows = a.x.size(0), depth = a.x.size(1), columns = a.y.size(1),
                     experts = a.first_E.numel() - 1, column_tiles = ceil_div(columns, kWide),
                     tiles = rows / kTile + experts;
  with_half_type(a.x.dtype, [&]<class T>(T) {
    launch(where, {rows == 0 ? 0 : tiles * column_tiles, 1, kGroupSharedBytes}, kTileThreads, name,
           a.transposed ? expert_group_rows_kernel<T, false> : expert_group_rows_kernel<T, true>, at<T>(a.x),
           at<T>(a.weight_NC), at<std::int32_t>(a.first_E), static_cast<int>(experts),
           static_cast<int>(columns), static_cast<int>(depth), static_cast<int>(column_tiles), at<T>(a.y));
  });
}

void expert_group_gradients(const Launch& where, const char* name, const ExpertGradients& a) {
  const std::int64_t n = a.dy_RN.size(1), c = a.x_RC.size(1), experts = a.first_E.numel() - 1,
                     row_tiles = ceil_div(n, kTile), column_tiles = ceil_div(c, kWide);
  with_state_type(a.dweight_NC.dtype, "experts: gradients are fp32 or bf16", [&](auto g) {
    using Out = decltype(g);
    with_half_and_gradient<Out>(a.x_RC.dtype, [&]<class T>(T) {
      launch(where, {experts * row_tiles * column_tiles, 1, kGroupSharedBytes}, kTileThreads, name,
             a.add ? expert_group_wgrad_kernel<T, true, Out> : expert_group_wgrad_kernel<T, false, Out>,
             at<T>(a.dy_RN), at<T>(a.x_RC), at<std::int32_t>(a.first_E), static_cast<int>(n),
             static_cast<int>(c), static_cast<int>(row_tiles), static_cast<int>(column_tiles),
             at<Out>(a.dweight_NC));
    });
  });
}

}  // namespace trainerd::kernels::cuda
