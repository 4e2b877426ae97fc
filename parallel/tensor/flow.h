#pragma once

// Helpers that bring flows (linear.h) to the form an operator needs: all rows, or summed over tp.

#include "parallel/comm/turns.h"
#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

inline void sum_over(const TensorParallel& tp, kernels::Stream& s, const kernels::Tensor& x,
                     const char* label) {
  if (tp.group.size() == 1) return;
  wait_in_turns(*tp.group.all_reduce(s, x, ReduceOp::sum, in_turns(s, label)), s);
}

inline bool cut(const TensorParallel& tp) { return tp.sequence_parallel && tp.group.size() > 1; }

inline kernels::Tensor whole_shape(const TensorParallel& tp, kernels::Stream& s,
                                   const kernels::Tensor& flow) {
  kernels::Shape shape = flow.shape;
  shape.sizes[0] *= tp.group.size();
  return s.scratch().take(flow.dtype, shape, kernels::MemoryTerm::activations);
}

/// All rows of a flow: the flow itself, or gathered in scratch.
inline kernels::Tensor gathered(const TensorParallel& tp, kernels::Stream& s, const kernels::Tensor& flow,
                                const char* label) {
  if (!cut(tp)) return flow;
  const kernels::Tensor whole = whole_shape(tp, s, flow);
  wait_in_turns(*tp.group.all_gather(s, flow, whole, in_turns(s, label)), s);
  return whole;
}

/// Calls `make(whole)`, which computes a partial sum, and writes its sum over tp to `flow`.
template <class Make>
void summed(const TensorParallel& tp, kernels::Stream& s, const kernels::Tensor& flow, const char* label,
            const Make& make) {
  if (!cut(tp)) {
    make(flow);
    sum_over(tp, s, flow, label);
    return;
  }
  const kernels::ArenaScope scope(s.scratch());
  const kernels::Tensor whole = whole_shape(tp, s, flow);
  make(whole);
  wait_in_turns(*tp.group.reduce_scatter(s, whole, flow, in_turns(s, label)), s);
}

}  // namespace trainerd::parallel
