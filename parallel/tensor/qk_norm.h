#pragma once

// The norm of queries and keys, and their rotation, where a norm goes over the heads of all tp ranks (OLMo
// 2): each rank makes the sums of its own heads, and two numbers per token are summed over tp. A head that
// several ranks hold (fewer key heads than ranks) is in the sum once for each of them, as it is in the number
// of heads; its gradients on those ranks are summands, and so are theirs of the sums.

#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

/// Whether `qk_norm_rope_forward` makes sums over tp.
inline bool sums_heads(const TensorParallel& tp, const kernels::Tensor& q_weight_E,
                       kernels::QkNormSpan span) {
  return tp.group.size() > 1 && q_weight_E.defined() && span == kernels::QkNormSpan::all;
}

enum class HeadSums : std::uint8_t { made, kept };

/// With `squares_T2` defined the norm goes over the heads of all ranks: `made` writes it first, `kept` reads
/// what an earlier call wrote.
void qk_norm_rope_forward(const TensorParallel&, kernels::Stream&, kernels::QkNormRopeForward, HeadSums);
/// `squares_T2` as the forward left it; `products_T2` is in scratch.
void qk_norm_rope_backward(const TensorParallel&, kernels::Stream&, kernels::QkNormRopeBackward);

}  // namespace trainerd::parallel
