// The GEMMs of experts. bf16 and fp16 run on tensor cores: on Hopper by warp groups (expert_gemm_group.cu),
// elsewhere by mma.sync, in tiles of 128 x 128 outputs with two stages of copies. fp32, and sizes or
// addresses that are not multiples of 16 bytes, take one thread per output and are slow. FP8:
// expert_gemm_fp8.cu.

#include "kernels/cuda/kernels/expert_gemm.cuh"
#include "kernels/cuda/kernels/expert_tile.cuh"
#include "kernels/cuda/kernels/launch.cuh"

namespace trainerd::kernels::cuda {
namespace {

// 4 x 2 warps of 32 x 64 outputs, in outputs of 16 x 8.
constexpr int kWarpRows = 2, kWarpColumns = 8;
__device__ inline int warp_row() { return warp_id() / 2 * 32; }
__device__ inline int warp_column() { return warp_id() % 2 * 64; }

using Wide = Panel<kTile>;  ///< kDepth rows of kTile outputs
static_assert(Wide::bytes(kDepth) == kStageBytes);

/// sums += A B of one stage. A is rows by depth, or depth by rows if `ADeep` is false; B is columns by depth,
/// or depth by columns. Both addresses have the lane's offset.
template <class T, bool ADeep, bool BDeep>
__device__ inline void multiply_stage(float (&sums)[kWarpRows][kWarpColumns][4], SharedAddress a,
                                      SharedAddress b) {
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    std::uint32_t left[kWarpRows][4];
#pragma unroll
    for (int m = 0; m < kWarpRows; ++m) {
      if constexpr (ADeep) load_matrices(left[m], Deep::block(a, warp_row() / 16 + m, k));
      else load_matrices_transposed(left[m], Wide::block(a, k, warp_row() / 16 + m));
    }
#pragma unroll
    for (int n = 0; n < kWarpColumns; n += 2) {
      std::uint32_t right[4];
      const int column = warp_column() / 16 + n / 2;
      if constexpr (BDeep) load_matrices(right, Deep::block(b, column, k));
      else load_matrices_transposed(right, Wide::block(b, k, column));
#pragma unroll
      for (int m = 0; m < kWarpRows; ++m) {
        multiply_add<T>(sums[m][n], left[m], right[0], right[1]);
        multiply_add<T>(sums[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// Starts the copies of the stage that begins at summand `from`.
template <bool IsDeep, class T>
__device__ inline void copy_stage(SharedAddress tile, const TileSide<T>& side, int from, int depth) {
  const int stride = static_cast<int>(side.stride);
  if constexpr (IsDeep)
    copy_to_tile<Deep, kTile, kTileThreads>(tile, side.x + from, 0, side.outer, stride, depth - from);
  else copy_to_tile<Wide, kDepth, kTileThreads>(tile, side.x, from, depth, stride, side.outer);
}

template <bool ADeep, bool BDeep, class T>
__device__ inline void multiply(float (&sums)[kWarpRows][kWarpColumns][4], const TileSide<T>& a,
                                const TileSide<T>& b, int depth) {
  const SharedAddress shared = dynamic_shared();
  const auto start = [&](int stage, int from) {
    copy_stage<ADeep>(shared + static_cast<SharedAddress>(stage * 2 * kStageBytes), a, from, depth);
    copy_stage<BDeep>(shared + static_cast<SharedAddress>((stage * 2 + 1) * kStageBytes), b, from, depth);
  };
  const SharedAddress of_a = shared + (ADeep ? Deep::lane() : Wide::lane_of_rows()),
                      of_b = shared + kStageBytes + (BDeep ? Deep::lane_of_rows() : Wide::lane());
  clear(sums);
  if (depth > 0) start(0, 0);
  int stage = 0;
  for (int from = 0; from < depth; from += kDepth, stage ^= 1) {
    wait_copies();
    __syncthreads();  // the stage has arrived for all, and all have read the other one
    if (from + kDepth < depth) start(stage ^ 1, from + kDepth);
    const auto offset = static_cast<SharedAddress>(stage * 2 * kStageBytes);
    multiply_stage<T, ADeep, BDeep>(sums, of_a + offset, of_b + offset);
  }
}

/// y[rows of e, n] = x[rows of e, depth] w: w of expert e is [n, depth] (`WDeep`), or [depth, n].
template <class T, bool WDeep>
__global__ void __launch_bounds__(kTileThreads)
    expert_rows_kernel(const T* x, const T* weight, const std::int32_t* first, int experts, int columns,
                       int depth, int column_tiles, T* y) {
  const RowTile tile = find_tile(first, experts, static_cast<int>(blockIdx.x) / column_tiles);
  if (tile.expert < 0) return;
  const int column = static_cast<int>(blockIdx.x) % column_tiles * kTile;
  const TileSides<T> sides = sides_of_rows<WDeep>(x, weight, tile, column, columns, depth);
  float sums[kWarpRows][kWarpColumns][4];
  multiply<true, WDeep>(sums, sides.rows, sides.columns, depth);
  put_sums<false>(sums, warp_row(), warp_column(),
                  y + static_cast<std::int64_t>(tile.begin) * columns + column, columns,
                  tile.end - tile.begin, columns - column);
}

/// dw of expert e [n, c] (+)= dy[rows of e, n]^T x[rows of e, c].
template <class T, bool kAdd, class Out>
__global__ void __launch_bounds__(kTileThreads)
    expert_wgrad_kernel(const T* dy, const T* x, const std::int32_t* first, int n, int c, int row_tiles,
                        int column_tiles, Out* dweight) {
  const int block = static_cast<int>(blockIdx.x), expert = block / (row_tiles * column_tiles),
            row = block / column_tiles % row_tiles * kTile, column = block % column_tiles * kTile;
  const int begin = first[expert], depth = first[expert + 1] - begin;
  if (kAdd && depth == 0) return;
  const TileSides<T> sides = sides_of_gradients(dy, x, begin, row, n, column, c);
  float sums[kWarpRows][kWarpColumns][4];
  multiply<false, false>(sums, sides.rows, sides.columns, depth);
  put_sums<kAdd>(sums, warp_row(), warp_column(),
                 dweight + (static_cast<std::int64_t>(expert) * n + row) * c + column, c, n - row,
                 c - column);
}

constexpr int kPlainThreads = 128;

template <class T, bool WDeep>
__global__ void __launch_bounds__(kPlainThreads)
    plain_rows_kernel(const T* x, const T* weight, const std::int32_t* first, int experts, std::int64_t rows,
                      std::int64_t columns, std::int64_t depth, T* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPlainThreads + threadIdx.x;
  if (i >= rows * columns) return;
  const std::int64_t row = i / columns, column = i % columns;
  if (row >= first[experts]) return;  // not in use
  std::int64_t expert = 0;
  while (first[expert + 1] <= row) ++expert;
  const T* w = weight + expert * columns * depth;
  float sum = 0;
  for (std::int64_t k = 0; k < depth; ++k)
    sum =
        fmaf(widen(x[row * depth + k]), widen(WDeep ? w[column * depth + k] : w[k * columns + column]), sum);
  y[i] = narrow<T>(sum);
}

template <class T, class Out>
__global__ void __launch_bounds__(kPlainThreads)
    plain_wgrad_kernel(const T* dy, const T* x, const std::int32_t* first, std::int64_t elements,
                       std::int64_t n, std::int64_t c, bool add, Out* dweight) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPlainThreads + threadIdx.x;
  if (i >= elements) return;
  const std::int64_t expert = i / (n * c), row = i / c % n, column = i % c;
  float sum = 0;
  for (std::int64_t r = first[expert]; r < first[expert + 1]; ++r)
    sum = fmaf(widen(dy[r * n + row]), widen(x[r * c + column]), sum);
  dweight[i] = narrow<Out>(add ? widen(dweight[i]) + sum : sum);
}

/// Whether tensor cores run a product with rows of these sizes.
template <class... Tensors>
bool for_tensor_cores(DType dtype, std::int64_t n, std::int64_t c, const Tensors&... tensors) {
  return size_of(dtype) == 2 && n % 8 == 0 && c % 8 == 0 && aligned(tensors...);
}

bool by_groups(const Launch& where) { return where.target.sm_version == 90; }

/// fprop if `WDeep`, else dgrad: of [R, depth] rows to [R, columns].
template <bool WDeep>
void rows_product(const Launch& where, const char* name, const Tensor& x, const Tensor& weight,
                  const Tensor& first_E, const Tensor& y) {
  const std::int64_t rows = x.size(0), depth = x.size(1), columns = y.size(1), experts = first_E.numel() - 1;
  base::check(y.dtype == x.dtype, "experts: results are in the dtype of the rows");
  if (for_tensor_cores(x.dtype, columns, depth, x, weight, y)) {
    if (by_groups(where)) return expert_group_rows(where, name, {x, weight, first_E, y, !WDeep});
    const std::int64_t column_tiles = ceil_div(columns, kTile), tiles = rows / kTile + experts;
    return with_half_type(x.dtype, [&]<class T>(T) {
      launch(where, {rows == 0 ? 0 : tiles * column_tiles, 1, kSharedBytes}, kTileThreads, name,
             expert_rows_kernel<T, WDeep>, at<T>(x), at<T>(weight), at<std::int32_t>(first_E),
             static_cast<int>(experts), static_cast<int>(columns), static_cast<int>(depth),
             static_cast<int>(column_tiles), at<T>(y));
    });
  }
  with_type(x.dtype, "experts: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch(where, {ceil_div(rows * columns, kPlainThreads)}, kPlainThreads, name, plain_rows_kernel<T, WDeep>,
           at<T>(x), at<T>(weight), at<std::int32_t>(first_E), static_cast<int>(experts), rows, columns,
           depth, at<T>(y));
  });
}

}  // namespace

void expert_fprop(const Launch& where, const ExpertFprop& a) {
  check_args(a);
  if (a.format == GemmFormat::fp8)
    return expert_fp8_rows(where, "expert_fprop", {a.x_RC, a.weight_NC, a.first_E, a.y_RN, false});
  rows_product<true>(where, "expert_fprop", a.x_RC, a.weight_NC, a.first_E, a.y_RN);
}

void expert_dgrad(const Launch& where, const ExpertDgrad& a) {
  check_args(a);
  if (a.format == GemmFormat::fp8)
    return expert_fp8_rows(where, "expert_dgrad", {a.dy_RN, a.weight_NC, a.first_E, a.dx_RC, true});
  rows_product<false>(where, "expert_dgrad", a.dy_RN, a.weight_NC, a.first_E, a.dx_RC);
}

void expert_wgrad(const Launch& where, const ExpertWgrad& a) {
  constexpr auto name = "expert_wgrad";
  check_args(a);
  const bool add = a.mode == WriteMode::accumulate;
  const ExpertGradients gradients{a.dy_RN, a.x_RC, a.first_E, a.dweight_NC, add};
  if (a.format == GemmFormat::fp8) return expert_fp8_gradients(where, name, gradients);
  const std::int64_t n = a.dy_RN.size(1), c = a.x_RC.size(1), experts = a.first_E.numel() - 1;
  with_state_type(a.dweight_NC.dtype, "experts: gradients are fp32 or bf16", [&](auto g) {
    using Out = decltype(g);
    if (for_tensor_cores(a.x_RC.dtype, n, c, a.dy_RN, a.x_RC, a.dweight_NC)) {
      if (by_groups(where)) return expert_group_gradients(where, name, gradients);
      const std::int64_t row_tiles = ceil_div(n, kTile), column_tiles = ceil_div(c, kTile);
      const auto launch_as = [&]<class T>(T) {
        launch(where, {experts * row_tiles * column_tiles, 1, kSharedBytes}, kTileThreads, name,
               add ? expert_wgrad_kernel<T, true, Out> : expert_wgrad_kernel<T, false, Out>, at<T>(a.dy_RN),
               at<T>(a.x_RC), at<std::int32_t>(a.first_E), static_cast<int>(n), static_cast<int>(c),
               static_cast<int>(row_tiles), static_cast<int>(column_tiles), at<Out>(a.dweight_NC));
      };
      return with_half_and_gradient<Out>(a.x_RC.dtype, launch_as);
    }
    with_types(a.x_RC.dtype, a.dweight_NC.dtype, [&](auto t, auto) {
      using T = decltype(t);
      launch(where, {ceil_div(a.dweight_NC.numel(), kPlainThreads)}, kPlainThreads, name,
             plain_wgrad_kernel<T, Out>, at<T>(a.dy_RN), at<T>(a.x_RC), at<std::int32_t>(a.first_E),
             a.dweight_NC.numel(), n, c, add, at<Out>(a.dweight_NC));
    });
  });
}

}  // namespace trainerd::kernels::cuda
