// Updates along an orthogonalised matrix, except for the products. Floors = bytes / memory bandwidth, per
// element: momentum_update 16 with fp32 throughout, copy_boxes 8, normalise 12, direction_update 12 with fp32
// weights. Transposed boxes are written by columns, one sector per element; the products take longer than
// that.

#include <algorithm>

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/rounding.cuh"
#include "kernels/memory/memory.h"

namespace trainerd::kernels::cuda {
namespace {

template <class G, class M>
struct MomentumBody {
  const G* grads;
  M* momentum;
  float* direction;
  const StepControlValues* control;
  float mu;
  bool nesterov;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float g[N], m[N];
    const bool skip = control->skip != 0;
    const float factor = control->grad_factor, rest = 1.0f - mu;
    load<N>(grads + i, g);
    load<N>(momentum + i, m);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      g[k] = rest * (g[k] * factor);
      m[k] = fmaf(mu, m[k], g[k]);
      g[k] = skip ? 0.0f : nesterov ? fmaf(mu, m[k], g[k]) : m[k];
    }
    if (!skip) store<N>(momentum + i, m);
    store<N>(direction + i, g);
  }
};

template <class P, class W>
struct DirectionBody {
  const float* direction;
  W* master;
  P* params;  ///< may be null
  const StepControlValues* control;
  UpdateRange range;
  float lr, scale;
  std::int64_t step;
  bool stochastic;
  template <int N>
  __device__ void at(std::int64_t i) const {
    if (control->skip != 0) return;
    float d[N], w[N];
    load<N>(direction + i, d);
    load<N>(master + i, w);
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = fmaf(-lr, fmaf(range.weight_decay, w[k], scale * d[k]), w[k]);
    if (params != nullptr) store<N>(params + i, w);
    if constexpr (sizeof(W) == 2) {
      if (stochastic) {
        std::uint32_t words[N];
        draw_words<N>(range, i, step, words);
#pragma unroll
        for (int k = 0; k < N; ++k) w[k] = rounded_by<W>(w[k], words[k] & 0xffffu);
      }
    }
    store<N>(master + i, w);
  }
};

constexpr int kOrthogonalThreads = 256;
constexpr std::int64_t kBoxTile = 4096;  ///< elements of a box per block
constexpr int kBoxesOfLaunch = 512;      ///< passed as kernel parameters (24 kB; the limit is 32 kB)

struct Boxes {
  int count;
  MatrixBox box[kBoxesOfLaunch];
  std::int64_t first_tile[kBoxesOfLaunch + 1];
};

__global__ void __launch_bounds__(kOrthogonalThreads)
    copy_boxes_kernel(float* packed, float* matrix, std::int64_t stride, bool transposed, bool to_matrix,
                      const __grid_constant__ Boxes boxes) {
  int low = 0, high = boxes.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (boxes.first_tile[middle] <= blockIdx.x) low = middle;
    else high = middle;
  }
  const MatrixBox& box = boxes.box[low];
  const std::int64_t columns = box.columns, count = box.rows * columns;
  const std::int64_t begin = (blockIdx.x - boxes.first_tile[low]) * kBoxTile,
                     end = begin + kBoxTile < count ? begin + kBoxTile : count;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kOrthogonalThreads) {
    const std::int64_t r = box.row + i / columns, c = box.column + i % columns;
    float& in_matrix = matrix[transposed ? c * stride + r : r * stride + c];
    float& in_packed = packed[box.begin + i];
    if (to_matrix) in_matrix = in_packed;
    else in_packed = in_matrix;
  }
}

__global__ void __launch_bounds__(kOrthogonalThreads)
    inverse_norm_kernel(const double* sums, std::int64_t blocks, float eps, float* factor) {
  double total = 0.0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += kOrthogonalThreads) total += sums[i];
  total = block_sum(total);
  if (threadIdx.x == 0) *factor = static_cast<float>(1.0 / (sqrt(total) + static_cast<double>(eps)));
}

struct ScaleByBody {
  float* x;
  const float* factor;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load<N>(x + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] *= *factor;
    store<N>(x + i, v);
  }
};

}  // namespace

void momentum_update(const Launch& where, const MomentumUpdate& a) {
  const std::int64_t n = a.direction.numel();
  base::check(a.direction.dtype == DType::f32 && a.grads.numel() == n && a.momentum.numel() == n,
              "momentum: an fp32 direction as long as gradients and momentum");
  with_state_type(a.grads.dtype, "momentum: fp32 or bf16 gradients", [&](auto g) {
    with_state_type(a.momentum.dtype, "momentum: fp32 or bf16", [&](auto m) {
      using G = decltype(g);
      using M = decltype(m);
      launch_flat<8>(
          where, n, aligned(a.grads, a.momentum, a.direction), "momentum_update",
          MomentumBody<G, M>{at<G>(a.grads), at<M>(a.momentum), at<float>(a.direction),
                             reinterpret_cast<const StepControlValues*>(a.control.data), a.mu, a.nesterov});
    });
  });
}

void copy_boxes(const Launch& where, const CopyBoxes& a) {
  check_boxes(a);
  for (std::size_t first = 0; first < a.boxes.size(); first += kBoxesOfLaunch) {
    Boxes boxes{};
    for (std::size_t i = first; i < a.boxes.size() && boxes.count < kBoxesOfLaunch; ++i, ++boxes.count) {
      boxes.box[boxes.count] = a.boxes[i];
      boxes.first_tile[boxes.count + 1] =
          boxes.first_tile[boxes.count] + ceil_div(a.boxes[i].rows * a.boxes[i].columns, kBoxTile);
    }
    launch(where, {boxes.first_tile[boxes.count]}, kOrthogonalThreads, "copy_boxes", copy_boxes_kernel,
           at<float>(a.packed), at<float>(a.matrix), a.matrix.size(1), a.transposed,
           a.to == CopyBoxes::To::matrix, boxes);
  }
}

void normalise(const Launch& where, const Normalise& a) {
  base::check(a.x.dtype == DType::f32, "normalise: fp32");
  const std::int64_t blocks = norm_blocks(a.x.numel());
  const Tensor sums{where.scratch, DType::f64, {blocks}};
  block_square_sums(where, {.x = a.x, .sums = sums});
  auto* factor = reinterpret_cast<float*>(where.scratch + blocks * 8);
  launch(where, {1}, kOrthogonalThreads, "normalise", inverse_norm_kernel, at<double>(sums), blocks, a.eps,
         factor);
  launch_flat<4>(where, a.x.numel(), aligned(a.x), "normalise", ScaleByBody{at<float>(a.x), factor});
}

void direction_update(const Launch& where, const DirectionUpdate& a) {
  check_ranges(a);
  const auto launch_as = [&](auto p, auto w) {
    using P = decltype(p);
    using W = decltype(w);
    for (const UpdateRange& range : a.ranges) {
      const auto part = [&](const Tensor& x) { return x.defined() ? x.rows(range.begin, range.count) : x; };
      const Tensor direction = part(a.direction), master = part(a.master), params = part(a.params);
      launch_flat<8>(where, range.count, aligned(direction, master, params), "direction_update",
                     DirectionBody<P, W>{at<float>(direction), at<W>(master), at<P>(params),
                                         reinterpret_cast<const StepControlValues*>(a.control.data), range,
                                         a.lr, a.scale, a.step, a.rounding == Rounding::stochastic});
    }
  };
  if (a.master.dtype == DType::bf16) return launch_as(Bf16{}, Bf16{});
  with_type(a.params.dtype, "direction update: fp32, bf16 or fp16 parameters",
            [&](auto p) { launch_as(p, float{}); });
}

}  // namespace trainerd::kernels::cuda
