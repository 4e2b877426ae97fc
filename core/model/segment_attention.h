#pragma once

// Attention itself, between the projections of a segment.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

kernels::HeadGeometry heads_of(const WalkContext&);

/// From `qkv` of the state to `attended` and `lse`, which are taken.
void attend(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&);
/// From the gradient of `attended` to `dqkv` of the state, and the sinks' gradients.
void attend_backward(const WalkContext&, const LayerParams&, const SegmentState&,
                     const kernels::Tensor& dattended);

}  // namespace trainerd::core::model
