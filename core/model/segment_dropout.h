#pragma once

// Scales and dropout of what flows between segments. Which elements are dropped is a function of the job's
// seed, the step, the element's place in the global batch, and where in the model it is: the same on every
// layout, and again in backward and in recomputation, so that no mask is kept.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// The embeddings' sum in place: in forward, and its gradient in backward.
void drop_embedding(const WalkContext&, const kernels::Tensor& flow_TD);
/// x times `factor`; nothing where that is 1.
void scale_in_place(const WalkContext&, const kernels::Tensor& x, float factor);
/// What a half-layer adds to the residual stream, in place: times `residual_scale`, and elements are dropped.
void finish_contribution(const WalkContext&, const LayerParams&, Segment::Kind half,
                         const kernels::Tensor& delta_TD);
/// The gradient of what `finish_contribution` was given, of that of what it made: `dflow_TD` itself where
/// that changes nothing, else in `frame.grads`, and then the state's `dout_TD` too.
kernels::Tensor contribution_gradient(const WalkContext&, const LayerParams&, Segment::Kind half, Frame&,
                                      SegmentState&, const kernels::Tensor& dflow_TD);

}  // namespace trainerd::core::model
