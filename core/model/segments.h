#pragma once

// The walks over each kind of segment: forward, backward_input, backward_weight. `backward_input` computes
// the gradient of the segment's input and the gradients of norms; what the weight gradients need stays in the
// state and `dflow`. `backward_weight` computes the gradients of GEMM weights, their biases and embeddings.
// With BackwardMode::fused, `backward_input` computes those of GEMM weights too.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

Flow embedding_forward(const WalkContext&, const ActivationArenas&, SegmentState&);
void embedding_backward_weight(const WalkContext&, const kernels::Tensor& dflow_TD);

/// `delta_TD` is where the segment's contribution goes; it may be `in.delta_TD`, which is read first.
Flow attention_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                       const Flow& in, const kernels::Tensor& delta_TD);
/// The forward up to the output projection: makes what the state lacks of it, by the same operators and so to
/// the same bits.
void attention_state(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                     const Flow& in);
/// The output projection and the norm behind it, if there is one: the segment's contribution.
void attention_output(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                      const kernels::Tensor& delta_TD);
void attention_backward_input(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                              const kernels::Tensor& dflow_TD, const kernels::Tensor& dx_TD, BackwardMode);
void attention_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&,
                               const kernels::Tensor& dflow_TD);

Flow mlp_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                 const Flow& in, const kernels::Tensor& delta_TD);
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
