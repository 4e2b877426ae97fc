#pragma once

// Heads of latent attention: each tp rank has its own heads, and the elements that all keys share are a flow.

#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

/// `k_rope_TR` is a flow; all rows of it are gathered.
void latent_heads_forward(const TensorParallel&, kernels::Stream&, const kernels::LatentHeadsForward&);
/// `dk_rope_TR` is a flow: the sum over all ranks' heads.
void latent_heads_backward(const TensorParallel&, kernels::Stream&, const kernels::LatentHeadsBackward&);

}  // namespace trainerd::parallel
