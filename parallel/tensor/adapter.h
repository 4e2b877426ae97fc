#pragma once

// Low-rank adapters of linear layers (Hu et al., LoRA, arXiv 2106.09685, section 4.1): the weight W [N, C] is
// frozen, and y = x (W + scale B A)^T, where A [R, C] and B [N, R] are trained instead.
//
// Under tensor parallelism adapters need no collectives beyond those of the layer, because all terms are
// linear. A column-parallel layer holds all of A and the rows of B that match its weight: the input gradient
// and A's gradient are partial sums over tp. A row-parallel layer holds the columns of A that match its
// weight and all of B: the output and B's gradient are partial sums.

#include "kernels/backend/backend.h"

namespace trainerd::parallel {

struct Adapter {
  kernels::Weight a_RC;
  kernels::Weight b_NR;
  float scale = 1;
};

/// The gradients of an adapter, from the dy and x that its layer's weight gradient would use.
struct AdapterWgrad {
  kernels::Tensor dy_TN;
  kernels::Tensor x_TC;
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
/// dA = scale (dy B)^T x, dB = scale dy^T (x A^T). Recomputes both products of R columns.
void adapter_wgrad(kernels::Backend&, kernels::Stream&, const AdapterWgrad&);

}  // namespace trainerd::parallel
