// Cross-entropy of a whole vocabulary with its gradient. One block per token holds its row of logits: in
// shared memory and, as far as that is too small, in registers (Qwen 2.5's 151,936 in bf16: 224 KB and 80
// KB). Floor = bytes / memory bandwidth: T V read and T V written. The arithmetic is that of ce_stats and
// ce_finish, in the same threads and order, so results have the same bits.

#include "kernels/cuda/kernels/loss.cuh"
#include "kernels/cuda/kernels/mma.cuh"
#include "kernels/cuda/launch/loss_launch.h"

namespace trainerd::kernels::cuda {
namespace {

using namespace cross_entropy;

struct RowStatistics {
  float* max;
  float* sum_exp;
  float* target_logit;
};

template <class T>
__device__ inline Raw<T, kVec<T>> load_vector(SharedAddress from) {
  const uint4 w = load_shared_16(from);
  return {{w.x, w.y, w.z, w.w}};
}

/// Each thread copies, reads and writes only its own vectors: every blockDim.x-th one of the row. The first
/// `shared` of them are in shared memory, and up to kRegisters in registers.
template <class T, bool kCapped, bool kSmooth, int kRegisters>
__global__ void __launch_bounds__(kMaxRowThreads)
    ce_row_kernel(T* logits, Finish a, RowStatistics out, Cap<T, kCapped> cap, int shared) {
  constexpr int N = kVec<T>;
  const std::int64_t t = blockIdx.x, step = static_cast<std::int64_t>(blockDim.x) * N,
                     first = static_cast<std::int64_t>(threadIdx.x) * N, behind = first + shared * step;
  T* const row = logits + t * a.held;
  const SharedAddress mine = dynamic_shared() + threadIdx.x * 16, stride = blockDim.x * 16;
  for (int j = 0; j < shared; ++j)
    if (first + j * step < a.held) copy_async_16(mine + j * stride, row + first + j * step, true);
  Raw<T, N> rest[kRegisters > 0 ? kRegisters : 1];
#pragma unroll
  for (int j = 0; j < kRegisters; ++j)
    if (behind + j * step < a.held) rest[j] = fetch<N>(row + behind + j * step);
  const float weight = a.weight[t], factor = weight * a.gradient_scale();
  const std::int64_t target = a.targets[t] - a.first_row;
  float expected = target >= 0 && target < a.real ? cap.of(widen(row[target])) : 0.0f;

  // Only vectors of real columns. Columns behind the last whole vector get one thread each.
  const std::int64_t whole = a.real / N * N;
  Online<T, kSmooth> online;
  const auto count = [&](const Raw<T, N>& raw) {
    float x[N];
    unpack<N>(raw, x);
    cap.apply(x);
    online.take(x);
  };
  wait_copies();
  for (int j = 0; j < shared; ++j)
    if (first + j * step < whole) count(load_vector<T>(mine + j * stride));
#pragma unroll
  for (int j = 0; j < kRegisters; ++j)
    if (behind + j * step < whole) count(rest[j]);
  if (const std::int64_t at = whole + threadIdx.x; at < a.real) {
    const float x[1] = {cap.of(widen(row[at]))};
    online.take(x);
  }
  float highest[1] = {online.max};
  block_reduce(highest, -INFINITY, Max{});
  const float max = highest[0];
  const float sum_exp = block_sum(max == -INFINITY ? online.sum : online.sum * exp_for<T>(online.max - max));
  if constexpr (kSmooth)
    expected = a.smoothing.on_target * expected + a.smoothing.every * block_sum(online.logits);
  if (threadIdx.x == 0) {
    out.max[t] = max;
    out.sum_exp[t] = sum_exp;
    out.target_logit[t] = expected;
    a.loss[t] = loss_of(weight, max, sum_exp, expected);
    if (a.z_loss > 0.0f) a.z_losses[t] = z_loss_of(weight, max, sum_exp, a.z_loss);
  }
  __syncthreads();  // all threads have read the elements of the row that they do not hold

  const auto gradient = gradient_of<T, kCapped, kSmooth>(a, cap, target, factor, max, sum_exp);
  const auto put_gradient = [&](const Raw<T, N>& raw, std::int64_t column) {
    float x[N] = {};
    if (factor != 0.0f) {
      unpack<N>(raw, x);
      gradient.apply(x, column);
    }
    store<N>(row + column, x);
  };
  for (int j = 0; j < shared; ++j)
    if (const std::int64_t column = first + j * step; column < a.held)
      put_gradient(load_vector<T>(mine + j * stride), column);
#pragma unroll
  for (int j = 0; j < kRegisters; ++j)
    if (const std::int64_t column = behind + j * step; column < a.held) put_gradient(rest[j], column);
}

}  // namespace

void ce_loss(const Launch& where, const CeLoss& a) {
  const LossRow row(a.logits_TV.size(1), a.logits_TV.dtype, where.target);
  if (!row.held || !aligned(a.logits_TV)) {
    ce_stats(where, stats_of(a));
    return ce_finish(where, finish_of(a));
  }
  const Finish args = arguments_of(a);
  const RowStatistics out{a.max_T.as<float>(), a.sum_exp_T.as<float>(), a.target_logit_T.as<float>()};
  const Grid grid{.x = args.tokens, .shared_bytes = row.shared * row.threads * 16};
  with_type(a.logits_TV.dtype, "cross-entropy: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_cap<T>(a.softcap, [&]<bool kCapped>(Cap<T, kCapped> cap) {
      const auto run = [&]<bool kSmooth>(std::bool_constant<kSmooth>) {
        launch(where, grid, row.threads, "ce_loss",
               row.registers > 0 ? ce_row_kernel<T, kCapped, kSmooth, kRegisterVectors>
                                 : ce_row_kernel<T, kCapped, kSmooth, 0>,
               at<T>(a.logits_TV), args, out, cap, row.shared);
      };
      if (a.label_smoothing > 0.0f) run(std::true_type{});
      else run(std::false_type{});
    });
  });
}

}  // namespace trainerd::kernels::cuda
