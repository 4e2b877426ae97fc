#pragma once

// Heads of latent attention over tp: each rank has some heads. The shared key elements are a flow.

#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

/// `k_rope_TR` is a flow; all rows of it are gathered.
void latent_heads_forward(const TensorParallel&, kernels::Stream&, const kernels::LatentHeadsForward&);
/// `dk_rope_TR` is a flow: the sum over all ranks' heads.
void latent_heads_backward(const TensorParallel&, kernels::Stream&, const kernels::LatentHeadsBackward&);

}  // namespace trainerd::parallel
