#pragma once

// The norms that open and close a segment. A model's norms come before attention and MLP, after them, or
// both: a norm that a segment does not have has no weight.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// What flows between segments, or is made of it row by row: with sequence parallelism, this rank's rows.
kernels::Tensor flow(const WalkContext&, kernels::Arena&);
/// A number for each of its rows, f32.
kernels::Tensor statistic(const WalkContext&, kernels::Arena&);
bool trainable(const WalkContext&, ParamId);
/// Where the gradients of two vectors go, which come with an input gradient; the second may be absent, or
/// both. Those of vectors that stay as they are go to scratch, for the caller's scope.
struct VectorGrads {
  kernels::Tensor first, second;
  kernels::WriteMode mode = kernels::WriteMode::assign;
};
VectorGrads vector_grads(const WalkContext&, ParamId first, ParamId second);
/// What is added to the weights of the model's RMS norms.
float weight_offset(const job::ModelOptions&);

/// Opens a segment: state.sum = residual + delta, state.y = norm(sum), or the sum itself where norms come
/// after alone. A sum that is defined already is where
/// it goes.
void norm_forward(const WalkContext&, const LinearParams& norm, const ActivationArenas&, SegmentState&,
                  const Flow& in);
/// dx = dsum + gradient of the norm; `dx_TD` may be `dy_TD`.
void norm_backward(const WalkContext&, const LinearParams& norm, const SegmentState&,
                   const kernels::Tensor& dy_TD, const kernels::Tensor& dsum_TD,
                   const kernels::Tensor& dx_TD);

/// Where the segment's last projection writes: `delta_TD` itself, or what `post_norm_forward` makes it of.
kernels::Tensor output_place(const WalkContext&, const LinearParams& post_norm, const ActivationArenas&,
                             SegmentState&, const kernels::Tensor& delta_TD);
/// Closes a segment: its contribution is norm(out), where there is such a norm.
void post_norm_forward(const WalkContext&, const LinearParams& post_norm, const SegmentState&,
                       const kernels::Tensor& delta_TD);
/// The gradient of what the segment's last projection wrote, of that of its contribution.
kernels::Tensor output_gradient(const WalkContext&, const LinearParams& post_norm, Frame&, SegmentState&,
                                const kernels::Tensor& dflow_TD);

}  // namespace trainerd::core::model
