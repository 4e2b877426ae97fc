#pragma once

// Scaling and dropout of the flow between segments. The dropped elements depend on the job's seed, the step,
// the element's index in the global batch, and the place in the model. So they are the same in every layout,
// and again in backward and recomputation, and no mask is kept.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// Drops elements of the embeddings' sum in place; in backward, of its gradient.
void drop_embedding(const WalkContext&, const kernels::Tensor& flow_TD);
/// Multiplies x by `factor`; does nothing if it is 1.
void scale_in_place(const WalkContext&, const kernels::Tensor& x, float factor);
/// Scales a half-layer's contribution to the residual stream by `residual_scale` and drops elements, in
/// place.
void finish_contribution(const WalkContext&, const LayerParams&, Segment::Kind half,
                         const kernels::Tensor& delta_TD);
/// The gradient of `finish_contribution`'s input, from that of its output: `dflow_TD` itself if that function
/// changes nothing; else a tensor in `frame.grads`, which is also the state's `dout_TD`.
kernels::Tensor contribution_gradient(const WalkContext&, const LayerParams&, Segment::Kind half, Frame&,
                                      SegmentState&, const kernels::Tensor& dflow_TD);

}  // namespace trainerd::core::model
