#pragma once

// Common to the cross-entropy kernels: statistics of a row, softcaps, the target's distribution, and a row's
// gradient.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/math.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda::cross_entropy {

/// Running maximum and sum of exp(x - max) of the elements a thread has seen; with kSmooth also their sum.
template <class T, bool kSmooth>
struct Online {
  float max = -INFINITY, sum = 0.0f, logits = 0.0f;

  template <int N>
  __device__ void take(const float (&x)[N]) {
    float high = max;
#pragma unroll
    for (int k = 0; k < N; ++k) high = fmaxf(high, x[k]);
    // If all elements so far are -infinity there is no finite maximum to subtract, and all exponentials are
    // zero. A NaN is never the maximum, so it reaches the sum.
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

/// Logits, with a softcap or unchanged.
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

/// The target's distribution: the weight of the target itself, and of every column.
struct Smoothing {
  float on_target = 1.0f, every = 0.0f;
};
inline Smoothing smoothing_of(float label_smoothing, std::int64_t vocab) {
  return {1.0f - label_smoothing, label_smoothing / static_cast<float>(vocab)};
}

/// A token without weight is padding: it adds nothing, whatever its logits are.
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
  float* z_losses;  ///< used if z_loss > 0
  std::int64_t tokens, held, real, first_row;
  float grad_scale, z_loss;
  Smoothing smoothing;
  const float* loss_scale;  ///< may be null

  __device__ float gradient_scale() const {
    return loss_scale == nullptr ? grad_scale : grad_scale * *loss_scale;
  }
};

/// Gradient of a row's logits: exp(x - max) scale, minus `factor` at the target; with kSmooth also minus
/// `every` at every column; times the slope of a softcap.
template <class T, bool kCapped, bool kSmooth>
struct Gradient {
  float max, scale, factor, every;
  std::int64_t target, real;  ///< target -1: not among the held columns
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

/// The gradient of a row whose weight times gradient scale is `factor`. `target` may be outside the held
/// columns.
template <class T, bool kCapped, bool kSmooth>
__device__ inline Gradient<T, kCapped, kSmooth> gradient_of(const Finish& a, Cap<T, kCapped> cap,
                                                            std::int64_t target, float factor, float max,
                                                            float sum_exp) {
  // A z-loss multiplies the probabilities by 1 + its derivative with respect to lse.
  const float pulled = a.z_loss > 0.0f ? factor * (1.0f + 2.0f * a.z_loss * (max + logf(sum_exp))) : factor;
  return {max,
          pulled / sum_exp,
          kSmooth ? factor * a.smoothing.on_target : factor,
          factor * a.smoothing.every,
          target < a.real ? target : -1,
          a.real,
          cap};
}

/// Number of held columns that are real vocabulary, not padding.
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

/// The common arguments of CeFinish and CeLoss.
template <class Args>
Finish arguments_of(const Args& a) {
  const std::int64_t tokens = a.logits_TV.size(0);
  base::check(a.targets_T.numel() == tokens && a.loss_weight_T.numel() == tokens &&
                  a.loss_T.numel() == tokens && a.max_T.numel() == tokens && a.sum_exp_T.numel() == tokens &&
                  a.target_logit_T.numel() == tokens,
              "cross-entropy: one target, weight and loss for each row of logits");
  base::check(a.z_loss == 0 || a.z_loss_T.numel() == tokens, "cross-entropy: one z-loss for each row");
  return {.targets = a.targets_T.template as<std::int32_t>(),
          .weight = a.loss_weight_T.template as<float>(),
          .max = a.max_T.template as<float>(),
          .sum_exp = a.sum_exp_T.template as<float>(),
          .target_logit = a.target_logit_T.template as<float>(),
          .loss = a.loss_T.template as<float>(),
          .z_losses = at<float>(a.z_loss_T),
          .tokens = tokens,
          .held = a.logits_TV.size(1),
          .real = real_columns(a),
          .first_row = a.first_row,
          .grad_scale = a.grad_scale,
          .z_loss = a.z_loss,
          .smoothing = smoothing_of(a.label_smoothing, a.vocab),
          .loss_scale = at<float>(a.loss_scale)};
}

}  // namespace trainerd::kernels::cuda::cross_entropy
