#pragma once

// Arguments of operators: loss. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// A logit x counts as softcap tanh(x / softcap) where `softcap` is not 0 (Gemma 2): in every statistic, and
/// in the gradient, which is that of x.
///
/// Per token, over the vocabulary rows held here: max, sum of exp(logit - max), and the target's logit (0
/// when the target is held elsewhere). Columns at or after `vocab` - `first_row` are padding and do not
/// count.
struct CeStats {
  Tensor logits_TV;
  Tensor targets_T;  ///< i32
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0.0f;
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;
};
/// Statistics of one part of the vocabulary, brought to the max of all parts: sum_exp *= exp(max_local -
/// max). Between the reductions of vocabulary parallelism: max over the ranks first, this, then the sums.
struct CeRescale {
  Tensor max_local_T;
  Tensor max_T;
  Tensor sum_exp_T;
};
/// loss[t] = weight[t] (max + log sum_exp - target_logit). dlogits = weight[t] grad_scale (softmax - onehot),
/// in place, times 1 - tanh^2 with a softcap.
struct CeFinish {
  Tensor logits_TV;
  Tensor targets_T;
  Tensor loss_weight_T;  ///< f32
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0.0f;  ///< as the statistics'
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;
  float grad_scale = 0.0f;
  Tensor loss_T;  ///< f32
  enum class Want : std::uint8_t { loss, loss_and_gradient } want = Want::loss_and_gradient;
};

inline OpClass op_class(const CeStats& a) { return memory_class(a.logits_TV); }
inline OpClass op_class(const CeFinish& a) { return memory_class(a.logits_TV); }

}  // namespace trainerd::kernels
