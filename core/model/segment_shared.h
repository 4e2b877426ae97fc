#pragma once

// The MLP beside the experts of a layer, which every token passes through (job::ExpertOptions::shared_ffn).
// Tensor parallelism cuts it like a dense MLP; ranks of expert parallelism each compute it for their own
// tokens. With a gate, its output is multiplied by a number of the token, the sigmoid of a product.
//
// Tokens and gradients are whole: gathered over tp. Nothing happens in layers without this MLP.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

inline bool has_shared(const LayerParams& ids) { return ids.shared_up.weight != kNoParam; }

/// Takes the memory of the activation, in scratch and so in the caller's scope, and, if the state has no
/// projection, of that and the factors.
void take_shared(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&);
/// The projection, the factors and the activation of these tokens.
void shared_up(const WalkContext&, const LayerParams&, const SegmentState&, const kernels::Tensor& x_TD);
/// The activation from the projection.
void shared_activate(const WalkContext&, const LayerParams&, const SegmentState&);
/// Adds the output to `sum_TD`.
void shared_down(const WalkContext&, const LayerParams&, const SegmentState&, const kernels::Tensor& sum_TD);

/// From the gradient of the output: those of the projection, in its place, and of the factors' logits; and
/// the activation, times its factors, in the frame.
void shared_backward(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                     const kernels::Tensor& dout_TD);
/// Adds the gradient of the tokens.
void shared_input_gradient(const WalkContext&, const LayerParams&, const SegmentState&,
                           const kernels::Tensor& dx_TD);
/// The gradient of the second matrix, and of the first and the gate's.
void shared_down_gradient(const WalkContext&, const LayerParams&, const SegmentState&,
                          const kernels::Tensor& dout_TD);
void shared_up_gradient(const WalkContext&, const LayerParams&, const SegmentState&,
                        const kernels::Tensor& x_TD);

}  // namespace trainerd::core::model
