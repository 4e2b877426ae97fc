#pragma once

// The walks over each kind of segment: forward, backward_input, backward_weight. `backward_input` computes
// the gradient of the segment's input and the gradients of norms; what the weight gradients need stays in the
// state and `dflow`. `backward_weight` computes the gradients of GEMM weights, their biases and embeddings.
// With BackwardMode::fused, `backward_input` computes those of GEMM weights too.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

Flow embedding_forward(const WalkContext&, const ActivationArenas&, SegmentState&);
void embedding_backward_weight(const WalkContext&, const kernels::Tensor& dflow_TD);

/// Where a half-layer's contribution goes: one of the two is defined. `delta_TD` may be the delta of the flow
/// that comes in, which is read first.
struct OutputPlace {
  kernels::Tensor delta_TD;  ///< by itself
  kernels::Tensor sum_TD;    ///< added to the segment's sum
};
/// Whether a half-layer's last product may add its contribution to the residual stream: the device does so at
/// no cost, and no norm, dropout or sum over tp comes between.
bool adds_to_flow(const WalkContext&, const LayerParams&, Segment::Kind half);

Flow attention_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                       const Flow& in, const OutputPlace&);
/// The forward up to the output projection: makes what the state lacks of it, by the same operators and so to
/// the same bits.
void attention_state(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                     const Flow& in);
/// The output projection and the norm behind it, if there is one: the segment's contribution.
void attention_output(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                      const OutputPlace&);
void attention_backward_input(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                              const kernels::Tensor& dflow_TD, const kernels::Tensor& dx_TD, BackwardMode);
void attention_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&,
                               const kernels::Tensor& dflow_TD);

Flow mlp_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                 const Flow& in, const OutputPlace&);
/// What the state lacks of what backward reads, as `attention_state`. Nothing in backward reads the down
/// projection but the norm behind it.
void mlp_recompute(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                   const Flow& in);
void mlp_backward_input(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                        const kernels::Tensor& dflow_TD, const kernels::Tensor& dx_TD, BackwardMode);
void mlp_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&,
                         const kernels::Tensor& dflow_TD);

void head_forward(const WalkContext&, const ActivationArenas&, SegmentState&, const Flow& in);
/// The scores at one row, before `logit_softcap`.
void head_logits(const WalkContext&, const SegmentState&, std::int64_t row, const kernels::Tensor& logits_1V);
/// Loss alone.
void head_loss(const WalkContext&, const SegmentState&, const LossTarget&);
/// Loss, the head's gradients, and the gradient of the segment's input.
void head_backward(const WalkContext&, const SegmentState&, const LossTarget&, const kernels::Tensor& dx_TD);

}  // namespace trainerd::core::model
