// Cross-entropy, one block per token's row of logits. Floor = bytes / memory bandwidth, in elements of the
// logits: ce_stats reads T V; ce_finish with the gradient reads T V and writes T V in place. The rest is per
// token and negligible.

#include "kernels/cuda/kernels/loss.cuh"
#include "kernels/cuda/launch/loss_launch.h"

namespace trainerd::kernels::cuda {
namespace {

using namespace cross_entropy;

// At least 32 threads: some of them take one element each before or after the aligned run of a row.
constexpr int kLossThreads = kMaxRowThreads;

/// Elements [head, tail) of a row of n are aligned to 16 bytes. Fewer than N elements are before and after.
/// With an odd vocabulary a row may begin at any element.
template <int N>
struct AlignedRun {
  std::int64_t head, tail;
  template <class T>
  __device__ AlignedRun(const T* row, std::int64_t n) {
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = past == 0 ? 0 : N - past;
    if (head > n) head = n;
    tail = head + (n - head) / N * N;
  }
};

template <class T, bool kCapped, bool kSmooth>
__global__ void __launch_bounds__(kLossThreads)
    ce_stats_kernel(const T* logits, const std::int32_t* targets, std::int64_t held, std::int64_t real,
                    std::int64_t first_row, Cap<T, kCapped> cap, Smoothing smoothing, float* max,
                    float* sum_exp, float* target_logit) {
  constexpr int N = kVec<T>;
  const std::int64_t t = blockIdx.x;
  const T* row = logits + t * held;
  const AlignedRun<N> run(row, real);
  Online<T, kSmooth> online;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * N;
  // Two vectors are loaded at once.
  std::int64_t i = run.head + static_cast<std::int64_t>(threadIdx.x) * N;
  for (; i + step < run.tail; i += 2 * step) {
    const Raw<T, N> first = fetch<N>(row + i), second = fetch<N>(row + i + step);
    float x[N];
    unpack<N>(first, x);
    cap.apply(x);
    online.take(x);
    unpack<N>(second, x);
    cap.apply(x);
    online.take(x);
  }
  if (i < run.tail) {
    float x[N];
    load<N>(row + i, x);
    cap.apply(x);
    online.take(x);
  }
  const std::int64_t edge = threadIdx.x, at = edge < run.head ? edge : run.tail + (edge - run.head);
  if (at < run.head || (at >= run.tail && at < real)) {
    const float x[1] = {cap.of(widen(row[at]))};
    online.take(x);
  }

  float highest[1] = {online.max};
  block_reduce(highest, -INFINITY, Max{});
  const float total =
      block_sum(highest[0] == -INFINITY ? online.sum : online.sum * exp_for<T>(online.max - highest[0]));
  float all_logits = 0.0f;
  if constexpr (kSmooth) all_logits = block_sum(online.logits);
  if (threadIdx.x == 0) {
    const std::int64_t target = targets[t] - first_row;
    max[t] = highest[0];
    sum_exp[t] = total;
    float expected = target >= 0 && target < real ? cap.of(widen(row[target])) : 0.0f;
    if constexpr (kSmooth) expected = smoothing.on_target * expected + smoothing.every * all_logits;
    target_logit[t] = expected;
  }
}

__global__ void ce_rescale_kernel(const float* local, const float* max, float* sum_exp, std::int64_t tokens) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // A part whose columns are all padding has max -inf and sum 0, and stays 0.
  if (t < tokens) sum_exp[t] = sum_exp[t] > 0 ? sum_exp[t] * expf(local[t] - max[t]) : 0.0f;
}

__global__ void ce_loss_kernel(Finish a) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= a.tokens) return;
  a.loss[t] = loss_of(a.weight[t], a.max[t], a.sum_exp[t], a.target_logit[t]);
  if (a.z_loss > 0.0f) a.z_losses[t] = z_loss_of(a.weight[t], a.max[t], a.sum_exp[t], a.z_loss);
}

template <class T, bool kCapped, bool kSmooth>
__global__ void __launch_bounds__(kLossThreads) ce_gradient_kernel(T* logits, Finish a, Cap<T, kCapped> cap) {
  constexpr int N = kVec<T>;
  const std::int64_t t = blockIdx.x;
  const float weight = a.weight[t], max = a.max[t], sum_exp = a.sum_exp[t],
              factor = weight * a.gradient_scale();
  if (threadIdx.x == 0) {
    a.loss[t] = loss_of(weight, max, sum_exp, a.target_logit[t]);
    if (a.z_loss > 0.0f) a.z_losses[t] = z_loss_of(weight, max, sum_exp, a.z_loss);
  }
  T* row = logits + t * a.held;
  const AlignedRun<N> run(row, a.held);
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * N;
  std::int64_t i = run.head + static_cast<std::int64_t>(threadIdx.x) * N;
  const std::int64_t edge = threadIdx.x, at = edge < run.head ? edge : run.tail + (edge - run.head);
  const bool has_edge = at < run.head || (at >= run.tail && at < a.held);
  if (factor == 0.0f) {
    const float zeros[N] = {}, zero[1] = {};
    for (; i < run.tail; i += step) store<N>(row + i, zeros);
    if (has_edge) store<1>(row + at, zero);
    return;
  }
  const auto gradient =
      gradient_of<T, kCapped, kSmooth>(a, cap, a.targets[t] - a.first_row, factor, max, sum_exp);
  for (; i + step < run.tail; i += 2 * step) {
    const Raw<T, N> first = fetch<N>(row + i), second = fetch<N>(row + i + step);
    float x[N];
    unpack<N>(first, x);
    gradient.apply(x, i);
    store<N>(row + i, x);
    unpack<N>(second, x);
    gradient.apply(x, i + step);
    store<N>(row + i + step, x);
  }
  if (i < run.tail) {
    float x[N];
    load<N>(row + i, x);
    gradient.apply(x, i);
    store<N>(row + i, x);
  }
  if (has_edge) {
    float x[1];
    load<1>(row + at, x);
    gradient.apply(x, at);
    store<1>(row + at, x);
  }
}

}  // namespace

void ce_stats(const Launch& where, const CeStats& a) {
  const std::int64_t tokens = a.logits_TV.size(0), held = a.logits_TV.size(1);
  base::check(a.targets_T.numel() == tokens && a.max_T.numel() == tokens && a.sum_exp_T.numel() == tokens &&
                  a.target_logit_T.numel() == tokens,
              "cross-entropy: one target and one set of statistics for each row of logits");
  with_type(a.logits_TV.dtype, "cross-entropy: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_cap<T>(a.softcap, [&]<bool kCapped>(Cap<T, kCapped> cap) {
      launch(
          where, {tokens}, row_threads(held), "ce_stats",
          a.label_smoothing > 0.0f ? ce_stats_kernel<T, kCapped, true> : ce_stats_kernel<T, kCapped, false>,
          at<T>(a.logits_TV), a.targets_T.as<std::int32_t>(), held, real_columns(a), a.first_row, cap,
          smoothing_of(a.label_smoothing, a.vocab), a.max_T.as<float>(), a.sum_exp_T.as<float>(),
          a.target_logit_T.as<float>());
    });
  });
}

void ce_rescale(const Launch& where, const CeRescale& a) {
  const std::int64_t tokens = a.max_T.numel();
  base::check(a.max_local_T.numel() == tokens && a.sum_exp_T.numel() == tokens,
              "cross-entropy: statistics of the same tokens");
  launch(where, {ceil_div(tokens, 256)}, 256, "ce_rescale", ce_rescale_kernel, a.max_local_T.as<float>(),
         a.max_T.as<float>(), a.sum_exp_T.as<float>(), tokens);
}

void ce_finish(const Launch& where, const CeFinish& a) {
  const Finish args = arguments_of(a);
  const std::int64_t tokens = args.tokens, held = args.held;
  if (a.want == CeFinish::Want::loss)
    return launch(where, {ceil_div(tokens, 256)}, 256, "ce_loss", ce_loss_kernel, args);
  with_type(a.logits_TV.dtype, "cross-entropy: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_cap<T>(a.softcap, [&]<bool kCapped>(Cap<T, kCapped> cap) {
      launch(where, {tokens}, row_threads(held), "ce_finish",
             a.label_smoothing > 0.0f ? ce_gradient_kernel<T, kCapped, true>
                                      : ce_gradient_kernel<T, kCapped, false>,
             at<T>(a.logits_TV), args, cap);
    });
  });
}

}  // namespace trainerd::kernels::cuda
