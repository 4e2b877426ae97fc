#pragma once

// Norm and rotation of queries and keys, where a norm spans the heads of all tp ranks (OLMo 2). Each rank
// sums over its own heads, and two numbers per token are summed over tp. A head that several ranks hold
// (fewer key heads than ranks) counts once per rank, both in the sums and in the number of heads. Its
// gradients on those ranks are partial sums, and so are their contributions to the sums.

#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

/// True if `qk_norm_rope_forward` sums over tp.
inline bool sums_heads(const TensorParallel& tp, const kernels::Tensor& q_weight_E,
                       kernels::QkNormSpan span) {
  return tp.group.size() > 1 && q_weight_E.defined() && span == kernels::QkNormSpan::all;
}

enum class HeadSums : std::uint8_t { made, kept };

/// With `squares_T2` defined the norm spans the heads of all ranks. `made`: computes `squares_T2` first.
/// `kept`: reads the `squares_T2` of an earlier call.
void qk_norm_rope_forward(const TensorParallel&, kernels::Stream&, kernels::QkNormRopeForward, HeadSums);
/// `squares_T2` as the forward left it; `products_T2` is allocated in scratch.
void qk_norm_rope_backward(const TensorParallel&, kernels::Stream&, kernels::QkNormRopeBackward);

}  // namespace trainerd::parallel
