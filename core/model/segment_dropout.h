#pragma once

// Dropout of what flows between segments. Which elements are dropped is a function of the job's seed, the
// step, the element's place in the global batch, and where in the model it is: the same on every layout, and
// again in backward and in recomputation, so that no mask is kept.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// The embeddings' sum in place: in forward, and its gradient in backward.
void drop_embedding(const WalkContext&, const kernels::Tensor& flow_TD);
/// What a half-layer adds to the residual stream, in place.
void drop_contribution(const WalkContext&, const LayerParams&, Segment::Kind half,
                       const kernels::Tensor& delta_TD);
/// The gradient of what was dropped, of that of what was added: `dflow_TD` itself where nothing is dropped,
/// else in `frame.grads`, and then the state's `dout_TD` too.
kernels::Tensor contribution_gradient(const WalkContext&, const LayerParams&, Segment::Kind half, Frame&,
                                      SegmentState&, const kernels::Tensor& dflow_TD);

}  // namespace trainerd::core::model
