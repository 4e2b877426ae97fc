#pragma once

// Latent attention between the norm before it and attention itself: queries, keys and values from latents.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// From the norm's output `y` of the state to `qkv`. Computes what the state lacks.
void latent_state(const WalkContext&, const LayerParams&, const kernels::Tensor& rope_table_SR,
                  const ActivationArenas&, SegmentState&);
/// From `dqkv` of the state to the gradient of `y`, `dx_TD`. What the weights' gradients read is in the
/// frame.
void latent_backward_input(const WalkContext&, const LayerParams&, const kernels::Tensor& rope_table_SR,
                           Frame&, SegmentState&, const kernels::Tensor& dx_TD, BackwardMode);
void latent_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&);

}  // namespace trainerd::core::model
