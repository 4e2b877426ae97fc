#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"

namespace trainerd::kernels {

void CpuBackend::ce_stats(Stream&, const CeStats& a) {
  const std::int64_t tokens = a.logits_TV.size(0);
  base::check(a.targets_T.numel() == tokens && a.max_T.numel() == tokens && a.sum_exp_T.numel() == tokens,
              "cross-entropy: one target and one set of statistics for each row of logits");
  for_each_block(pool_, tokens, rows_per_block(a.logits_TV.size(1)),
                 [&](std::int64_t begin, std::int64_t end) { vector_.ce_stats(a, begin, end); });
}

void CpuBackend::ce_finish(Stream&, const CeFinish& a) {
  const std::int64_t tokens = a.logits_TV.size(0);
  base::check(
      a.targets_T.numel() == tokens && a.loss_weight_T.numel() == tokens && a.loss_T.numel() == tokens,
      "cross-entropy: one target, weight and loss for each row of logits");
  for_each_block(pool_, tokens, rows_per_block(a.logits_TV.size(1)),
                 [&](std::int64_t begin, std::int64_t end) { vector_.ce_finish(a, begin, end); });
}

}  // namespace trainerd::kernels
