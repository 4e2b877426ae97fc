#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"

namespace trainerd::kernels {

void CpuBackend::ce_stats(Stream&, const CeStats& a) {
  const std::int64_t tokens = a.logits_TV.size(0);
  base::check(a.targets_T.numel() == tokens && a.max_T.numel() == tokens && a.sum_exp_T.numel() == tokens,
              "cross-entropy: one target and one set of statistics for each row of logits");
  for_each_block(pool_, tokens, rows_per_block(a.logits_TV.size(1)),
                 [&](std::int64_t begin, std::int64_t end) { vector_.ce_stats(a, begin, end); });
}

void CpuBackend::ce_rescale(Stream&, const CeRescale& a) {
  const float *local = a.max_local_T.as<float>(), *max = a.max_T.as<float>();
  float* sum = a.sum_exp_T.as<float>();
  // A part whose columns are all padding has max -inf and sum 0, and stays 0.
  for (std::int64_t t = 0; t < a.max_T.numel(); ++t)
    sum[t] = sum[t] > 0 ? sum[t] * std::exp(local[t] - max[t]) : 0.0f;
}

void CpuBackend::ce_finish(Stream&, const CeFinish& a) {
  const std::int64_t tokens = a.logits_TV.size(0);
  base::check(
      a.targets_T.numel() == tokens && a.loss_weight_T.numel() == tokens && a.loss_T.numel() == tokens,
      "cross-entropy: one target, weight and loss for each row of logits");
  base::check(a.z_loss == 0 || a.z_loss_T.numel() == tokens, "cross-entropy: one z-loss for each row");
  for_each_block(pool_, tokens, rows_per_block(a.logits_TV.size(1)),
                 [&](std::int64_t begin, std::int64_t end) { vector_.ce_finish(a, begin, end); });
}

void CpuBackend::ce_loss(Stream& stream, const CeLoss& a) {
  ce_stats(stream, stats_of(a));
  ce_finish(stream, finish_of(a));
}

void CpuBackend::preference_loss(Stream&, const PreferenceLoss& a) {
  const std::int64_t pairs = a.reference_P2.size(0),
                     tokens = a.loss_T.numel() / std::max<std::int64_t>(1, pairs);
  base::check(tokens * pairs == a.loss_T.numel() && a.loss_weight_T.numel() == a.loss_T.numel() &&
                  a.logps_P2.numel() == 2 * pairs,
              "preferences: each pair has as many tokens, and a reference");
  for (std::int64_t p = 0; p < pairs; ++p) {
    const float *loss = a.loss_T.as<float>() + p * tokens, *weight = a.loss_weight_T.as<float>() + p * tokens;
    double chosen = 0, rejected = 0;
    bool counts = false;
    for (std::int64_t t = 0; t < tokens; ++t) {
      counts = counts || weight[t] != 0;
      if (weight[t] > 0) chosen -= static_cast<double>(loss[t]);
      else rejected += static_cast<double>(loss[t]);
    }
    a.logps_P2.as<double>()[2 * p] = chosen;
    a.logps_P2.as<double>()[2 * p + 1] = rejected;
    const double beta = static_cast<double>(a.beta), smoothing = static_cast<double>(a.label_smoothing);
    const double reward = beta * (chosen - a.reference_P2.as<double>()[2 * p]),
                 x = reward - beta * (rejected - a.reference_P2.as<double>()[2 * p + 1]);
    // -log sigmoid(x) and -log sigmoid(-x), and the gradient's factor, which uses the sigmoids of -x and x.
    const double tail = std::log1p(std::exp(-std::abs(x)));
    const double right = std::max(-x, 0.0) + tail, wrong = std::max(x, 0.0) + tail;
    const double slope = beta * ((1 - smoothing) / (1 + std::exp(x)) - smoothing / (1 + std::exp(-x)));
    if (a.weight_T.defined())
      for (std::int64_t t = 0; t < tokens; ++t)
        a.weight_T.as<float>()[p * tokens + t] = static_cast<float>(slope * static_cast<double>(weight[t]));
    if (!counts) continue;
    if (a.loss.defined()) *a.loss.as<double>() += (1 - smoothing) * right + smoothing * wrong;
    if (!a.rewards.defined()) continue;
    double* rewards = a.rewards.as<double>();
    rewards[0] += x;
    rewards[1] += x > 0 ? 1 : 0;
    rewards[2] += reward;
  }
}

}  // namespace trainerd::kernels
