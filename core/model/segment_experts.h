#pragma once

// The MLP of a layer with experts: a router chooses the experts of each token, tokens are copied to their
// experts, and their outputs are added with the router's weights. No token is dropped. With tensor
// parallelism every expert is cut like a dense MLP, and every rank routes all tokens of the group; or experts
// are whole, and every rank routes its own tokens (parallel::ExpertParallel::own_tokens). With expert
// parallelism a rank has some of the experts, and computes them for the tokens of all ranks.

#include "core/model/model_chunk.h"
#include "core/model/segments.h"

namespace trainerd::core::model {

inline bool has_experts(const LayerParams& ids) { return ids.options.experts; }

// As the functions of the dense MLP in segments.h.
Flow experts_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                     const Flow& in, const OutputPlace&);
void experts_recompute(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                       const Flow& in);
/// With the gradient of the balance loss, if there is one.
void experts_backward_input(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                            const kernels::Tensor& dflow_TD, const kernels::Tensor& dx_TD, const LossTarget&,
                            BackwardMode);
void experts_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&,
                             const kernels::Tensor& dflow_TD);

}  // namespace trainerd::core::model
