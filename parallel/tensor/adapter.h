#pragma once

// Low-rank adapters of linear layers (Hu et al., LoRA, arXiv 2106.09685, section 4.1): the weight W [N, C]
// stays as it is, and y = x (W + scale B A)^T with A [R, C] and B [N, R] trained in its place.
//
// Under tensor parallelism everything is linear, so no collective is added to those of the layer itself. A
// column-parallel layer has all of A and the rows of B that are those of its weight: the input gradient, and
// A's gradient, are summands over tp. A row-parallel one has the columns of A and all of B: the output, and
// B's gradient, are summands.

#include "kernels/backend/backend.h"

namespace trainerd::parallel {

struct Adapter {
  kernels::Weight a_RC;
  kernels::Weight b_NR;
  float scale = 1;
};

/// The gradients of an adapter, of the same dy and x as its layer's weight gradient would be.
struct AdapterWgrad {
  kernels::Operand dy_TN;
  kernels::Operand x_TC;
  Adapter adapter;
  kernels::Tensor da_RC;
  kernels::Tensor db_NR;
  kernels::WriteMode a_mode = kernels::WriteMode::accumulate;
  kernels::WriteMode b_mode = kernels::WriteMode::accumulate;
};

/// y += scale (x A^T) B^T.
void add_adapter(kernels::Backend&, kernels::Stream&, const Adapter&, const kernels::Tensor& x_TC,
                 const kernels::Tensor& y_TN);
/// dx += scale (dy B) A.
void add_adapter_dgrad(kernels::Backend&, kernels::Stream&, const Adapter&, const kernels::Tensor& dy_TN,
                       const kernels::Tensor& dx_TC);
/// dA = scale (dy B)^T x, dB = scale dy^T (x A^T): both products of R columns are made again.
void adapter_wgrad(kernels::Backend&, kernels::Stream&, const AdapterWgrad&);

}  // namespace trainerd::parallel
