// Cross-entropy, one block for each token's row of logits. Floor = bytes / memory bandwidth, bytes in
// elements of the logits:
//   ce_stats T V read; ce_finish with the gradient T V read and T V written in place; the rest is per token
//   and nothing.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/math.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kThreads = 512;

/// Elements [head, tail) of a row of n lie on 16-byte boundaries of memory; what is before and after is fewer
/// than N each. A row of an odd vocabulary begins anywhere.
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

/// Running maximum and sum of exp(x - max) of the elements a thread has seen; with kSmooth their sum too.
template <class T, bool kSmooth>
struct Online {
  float max = -INFINITY, sum = 0.0f, logits = 0.0f;

  template <int N>
  __device__ void take(const float (&x)[N]) {
    float high = max;
#pragma unroll
    for (int k = 0; k < N; ++k) high = fmaxf(high, x[k]);
    // A row of -infinity so far has no finite reference to subtract; its exponentials are all zero. A NaN is
    // never the maximum, and comes through the sum.
    const float reference = high == -INFINITY ? 0.0f : high;
    if (high > max) {
      sum *= exp_for<T>(max - high);
      max = high;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sum += exp_for<T>(x[k] - reference);
    if constexpr (kSmooth) {
#pragma unroll
      for (int k = 0; k < N; ++k) logits += x[k];
    }
  }
};

/// Logits as they are, or under a softcap.
template <class T, bool kCapped>
struct Cap {
  float softcap, inverse;
  __device__ float of(float x) const { return kCapped ? softcap * tanh_for<T>(x * inverse) : x; }
  /// 1 - tanh^2 of a capped logit.
  __device__ float slope(float capped) const {
    const float t = kCapped ? capped * inverse : 0.0f;
    return 1.0f - t * t;
  }
  template <int N>
  __device__ void apply(float (&x)[N]) const {
    if constexpr (kCapped) {
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] = of(x[k]);
    }
  }
};

/// The target's distribution: what is on the target itself, and on every column.
struct Smoothing {
  float on_target = 1.0f, every = 0.0f;
};
Smoothing smoothing_of(float label_smoothing, std::int64_t vocab) {
  return {1.0f - label_smoothing, label_smoothing / static_cast<float>(vocab)};
}

template <class T, bool kCapped, bool kSmooth>
__global__ void __launch_bounds__(kThreads)
    ce_stats_kernel(const T* logits, const std::int32_t* targets, std::int64_t held, std::int64_t real,
                    std::int64_t first_row, Cap<T, kCapped> cap, Smoothing smoothing, float* max,
                    float* sum_exp, float* target_logit) {
  constexpr int N = kVec<T>;
  const std::int64_t t = blockIdx.x;
  const T* row = logits + t * held;
  const AlignedRun<N> run(row, real);
  Online<T, kSmooth> online;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * N;
  // Two vectors are on their way at once.
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
  // A part without a column that counts has max -inf and sum 0, and stays 0.
  if (t < tokens) sum_exp[t] = sum_exp[t] > 0 ? sum_exp[t] * expf(local[t] - max[t]) : 0.0f;
}

/// A token without weight is padding: whatever its logits are, it adds nothing.
__host__ __device__ inline float loss_of(float weight, float max, float sum_exp, float target_logit) {
  return weight == 0.0f ? 0.0f : weight * (max + logf(sum_exp) - target_logit);
}

__host__ __device__ inline float z_loss_of(float weight, float max, float sum_exp, float z_loss) {
  const float lse = max + logf(sum_exp);
  return weight == 0.0f ? 0.0f : weight * z_loss * lse * lse;
}

struct Finish {
  const std::int32_t* targets;
  const float* weight;
  const float* max;
  const float* sum_exp;
  const float* target_logit;
  float* loss;
  float* z_losses;  ///< where z_loss > 0
  std::int64_t tokens, held, real, first_row;
  float grad_scale, z_loss;
  Smoothing smoothing;
};

__global__ void ce_loss_kernel(Finish a) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= a.tokens) return;
  a.loss[t] = loss_of(a.weight[t], a.max[t], a.sum_exp[t], a.target_logit[t]);
  if (a.z_loss > 0.0f) a.z_losses[t] = z_loss_of(a.weight[t], a.max[t], a.sum_exp[t], a.z_loss);
}

/// What a row's logits become: exp(x - max) scale, less `factor` at the target; with kSmooth less `every` at
/// every column; times the slope of a softcap.
template <class T, bool kCapped, bool kSmooth>
struct Gradient {
  float max, scale, factor, every;
  std::int64_t target, real;  ///< target -1: not among the columns held
  Cap<T, kCapped> cap;

  template <int N>
  __device__ void apply(float (&x)[N], std::int64_t column) const {
    float slope[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] = cap.of(x[k]);
      slope[k] = cap.slope(x[k]);
      x[k] = exp_for<T>(x[k] - max) * scale;
    }
    if constexpr (kSmooth) {
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] -= every;
    }
    const std::int64_t hit = target - column;
    if (hit >= 0 && hit < N) {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (hit == k) x[k] -= factor;
    }
    if constexpr (kCapped) {
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] *= slope[k];
    }
    if (column + N > real) {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (column + k >= real) x[k] = 0.0f;
    }
  }
};

template <class T, bool kCapped, bool kSmooth>
__global__ void __launch_bounds__(kThreads) ce_gradient_kernel(T* logits, Finish a, Cap<T, kCapped> cap) {
  constexpr int N = kVec<T>;
  const std::int64_t t = blockIdx.x;
  const float weight = a.weight[t], max = a.max[t], sum_exp = a.sum_exp[t], factor = weight * a.grad_scale;
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
  const std::int64_t target = a.targets[t] - a.first_row;
  // With a z-loss the probabilities count for more by its derivative with respect to lse.
  const float pulled = a.z_loss > 0.0f ? factor * (1.0f + 2.0f * a.z_loss * (max + logf(sum_exp))) : factor;
  const Gradient<T, kCapped, kSmooth> gradient{max,
                                               pulled / sum_exp,
                                               kSmooth ? factor * a.smoothing.on_target : factor,
                                               factor * a.smoothing.every,
                                               target < a.real ? target : -1,
                                               a.real,
                                               cap};
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

/// Columns of the rows held that are real vocabulary.
template <class Args>
std::int64_t real_columns(const Args& a) {
  return std::clamp<std::int64_t>(a.vocab - a.first_row, 0, a.logits_TV.size(1));
}

/// Calls `f` with the cap of logits of type T.
template <class T, class F>
void with_cap(float softcap, const F& f) {
  if (softcap > 0) f(Cap<T, true>{softcap, 1.0f / softcap});
  else f(Cap<T, false>{});
}

/// At least 32 of them: each may take one element before or after the aligned run of a row.
int threads_of_row(std::int64_t columns) { return threads_for(ceil_div(columns, 16), kThreads); }

}  // namespace

void ce_stats(const Launch& where, const CeStats& a) {
  const std::int64_t tokens = a.logits_TV.size(0), held = a.logits_TV.size(1);
  base::check(a.targets_T.numel() == tokens && a.max_T.numel() == tokens && a.sum_exp_T.numel() == tokens &&
                  a.target_logit_T.numel() == tokens,
              "cross-entropy: one target and one set of statistics for each row of logits");
  with_type(a.logits_TV.dtype, "cross-entropy: fp32 or bf16", [&](auto t) {
    using T = decltype(t);
    with_cap<T>(a.softcap, [&]<bool kCapped>(Cap<T, kCapped> cap) {
      launch(
          where, {tokens}, threads_of_row(held), "ce_stats",
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
  const std::int64_t tokens = a.logits_TV.size(0), held = a.logits_TV.size(1);
  base::check(a.targets_T.numel() == tokens && a.loss_weight_T.numel() == tokens &&
                  a.loss_T.numel() == tokens && a.max_T.numel() == tokens && a.sum_exp_T.numel() == tokens &&
                  a.target_logit_T.numel() == tokens,
              "cross-entropy: one target, weight and loss for each row of logits");
  base::check(a.z_loss == 0 || a.z_loss_T.numel() == tokens, "cross-entropy: one z-loss for each row");
  const Finish args{.targets = a.targets_T.as<std::int32_t>(),
                    .weight = a.loss_weight_T.as<float>(),
                    .max = a.max_T.as<float>(),
                    .sum_exp = a.sum_exp_T.as<float>(),
                    .target_logit = a.target_logit_T.as<float>(),
                    .loss = a.loss_T.as<float>(),
                    .z_losses = at<float>(a.z_loss_T),
                    .tokens = tokens,
                    .held = held,
                    .real = real_columns(a),
                    .first_row = a.first_row,
                    .grad_scale = a.grad_scale,
                    .z_loss = a.z_loss,
                    .smoothing = smoothing_of(a.label_smoothing, a.vocab)};
  if (a.want == CeFinish::Want::loss)
    return launch(where, {ceil_div(tokens, 256)}, 256, "ce_loss", ce_loss_kernel, args);
  with_type(a.logits_TV.dtype, "cross-entropy: fp32 or bf16", [&](auto t) {
    using T = decltype(t);
    with_cap<T>(a.softcap, [&]<bool kCapped>(Cap<T, kCapped> cap) {
      launch(where, {tokens}, threads_of_row(held), "ce_finish",
             a.label_smoothing > 0.0f ? ce_gradient_kernel<T, kCapped, true>
                                      : ce_gradient_kernel<T, kCapped, false>,
             at<T>(a.logits_TV), args, cap);
    });
  });
}

}  // namespace trainerd::kernels::cuda
