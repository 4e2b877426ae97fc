// Losses of preference pairs, from the losses of their tokens. Floor: a few numbers per token, read twice.

#include <cmath>

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/reduce.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kPairThreads = 256;

struct Preferences {
  const float* loss;
  const float* loss_weight;
  const double* reference;
  float* weight;  ///< may be null; so may `total` and `rewards`
  double* logps;
  double* total;
  double* rewards;
  std::int64_t pairs, tokens;  ///< tokens per pair
  double beta, smoothing;
};

/// One block processes the pairs in order, so that sums have a fixed order. A microbatch has few pairs, and
/// their data is small compared with a row of logits.
__global__ void __launch_bounds__(kPairThreads) preference_loss_kernel(Preferences a) {
  for (std::int64_t p = 0; p < a.pairs; ++p) {
    const float *loss = a.loss + p * a.tokens, *weight = a.loss_weight + p * a.tokens;
    double sums[3] = {0.0, 0.0, 0.0};  // chosen, rejected, number of tokens with weight
    for (std::int64_t t = threadIdx.x; t < a.tokens; t += kPairThreads) {
      if (weight[t] > 0.0f) sums[0] -= static_cast<double>(loss[t]);
      else sums[1] += static_cast<double>(loss[t]);
      if (weight[t] != 0.0f) sums[2] += 1.0;
    }
    block_sums(sums);  // all threads get the sums
    const double reward = a.beta * (sums[0] - a.reference[2 * p]),
                 x = reward - a.beta * (sums[1] - a.reference[2 * p + 1]);
    if (a.weight != nullptr) {
      const double slope = a.beta * ((1.0 - a.smoothing) / (1.0 + exp(x)) - a.smoothing / (1.0 + exp(-x)));
      for (std::int64_t t = threadIdx.x; t < a.tokens; t += kPairThreads)
        a.weight[p * a.tokens + t] = static_cast<float>(slope * static_cast<double>(weight[t]));
    }
    if (threadIdx.x != 0) continue;
    a.logps[2 * p] = sums[0];
    a.logps[2 * p + 1] = sums[1];
    if (sums[2] == 0.0) continue;
    const double tail = log1p(exp(-fabs(x)));
    if (a.total != nullptr)
      *a.total += (1.0 - a.smoothing) * (fmax(-x, 0.0) + tail) + a.smoothing * (fmax(x, 0.0) + tail);
    if (a.rewards == nullptr) continue;
    a.rewards[0] += x;
    a.rewards[1] += x > 0.0 ? 1.0 : 0.0;
    a.rewards[2] += reward;
  }
}

}  // namespace

void preference_loss(const Launch& where, const PreferenceLoss& a) {
  const std::int64_t pairs = a.reference_P2.size(0);
  if (pairs == 0) return;
  const std::int64_t tokens = a.loss_T.numel() / pairs;
  base::check(tokens * pairs == a.loss_T.numel() && a.loss_weight_T.numel() == a.loss_T.numel() &&
                  a.logps_P2.numel() == 2 * pairs,
              "preferences: each pair has as many tokens, and a reference");
  launch(where, {1}, kPairThreads, "preference_loss", preference_loss_kernel,
         Preferences{.loss = a.loss_T.as<float>(),
                     .loss_weight = a.loss_weight_T.as<float>(),
                     .reference = a.reference_P2.as<double>(),
                     .weight = at<float>(a.weight_T),
                     .logps = a.logps_P2.as<double>(),
                     .total = at<double>(a.loss),
                     .rewards = at<double>(a.rewards),
                     .pairs = pairs,
                     .tokens = tokens,
                     .beta = static_cast<double>(a.beta),
                     .smoothing = static_cast<double>(a.label_smoothing)});
}

}  // namespace trainerd::kernels::cuda
