#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/plan/blocks.h"
#include "kernels/cpu/simd/vector_kernels.h"

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
  // A part without a column that counts has max -inf and sum 0, and stays 0.
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

}  // namespace trainerd::kernels
