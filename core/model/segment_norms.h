#pragma once

// The norms before and after a segment. A model has norms before attention and MLP, after them, or both. A
// norm that a segment does not have has no weight.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// A tensor for the flow between segments or one computed row by row from it: with sequence parallelism, this
/// rank's rows.
kernels::Tensor flow(const WalkContext&, kernels::Arena&);
/// One f32 number per row of the flow.
kernels::Tensor statistic(const WalkContext&, kernels::Arena&);
bool trainable(const WalkContext&, ParamId);
/// Destinations for the gradients of two vectors that an operator computes with an input gradient; the second
/// or both may be absent. Those of frozen vectors are in scratch, in the caller's scope.
struct VectorGrads {
  kernels::Tensor first, second;
  kernels::WriteMode mode = kernels::WriteMode::assign;
};
VectorGrads vector_grads(const WalkContext&, ParamId first, ParamId second);
/// Constant added to the weights of the model's RMS norms.
float weight_offset(const job::ModelOptions&);

/// Begins a segment: state.sum = residual + delta and state.y = norm(sum), or the sum itself if norms come
/// only after. If state.sum is defined already, the sum is written there.
void norm_forward(const WalkContext&, const LinearParams& norm, const ActivationArenas&, SegmentState&,
                  const Flow& in);
/// dx = dsum + gradient of the norm; `dx_TD` may be `dy_TD`.
void norm_backward(const WalkContext&, const LinearParams& norm, const SegmentState&,
                   const kernels::Tensor& dy_TD, const kernels::Tensor& dsum_TD,
                   const kernels::Tensor& dx_TD);

/// Destination of the segment's last projection: `delta_TD` itself, or the input of `post_norm_forward`.
kernels::Tensor output_place(const WalkContext&, const LinearParams& post_norm, const ActivationArenas&,
                             SegmentState&, const kernels::Tensor& delta_TD);
/// Ends a segment: its contribution is norm(out), if there is such a norm.
void post_norm_forward(const WalkContext&, const LinearParams& post_norm, const SegmentState&,
                       const kernels::Tensor& delta_TD);
/// The gradient of the last projection's output, from that of the segment's contribution.
kernels::Tensor output_gradient(const WalkContext&, const LinearParams& post_norm, Frame&, SegmentState&,
                                const kernels::Tensor& dflow_TD);

}  // namespace trainerd::core::model
