#pragma once

// The walks over each kind of segment: forward, backward_input, backward_weight. `backward_input` computes
// the gradient of the segment's input and the gradients of norms; the inputs of the weight gradients stay in
// the state and `dflow`. `backward_weight` computes the gradients of GEMM weights, their biases and
// embeddings. With BackwardMode::fused, `backward_input` computes those of GEMM weights too.

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

Flow embedding_forward(const WalkContext&, const ActivationArenas&, SegmentState&);
void embedding_backward_weight(const WalkContext&, const kernels::Tensor& dflow_TD);

/// Destination of a half-layer's contribution: one of the two is defined. `delta_TD` may be the incoming
/// flow's delta, which is read first.
struct OutputPlace {
  kernels::Tensor delta_TD;  ///< the contribution alone
  kernels::Tensor sum_TD;    ///< the contribution plus the segment's sum
};
/// True if a half-layer's last GEMM can add its contribution to the residual stream: the device does that at
/// no cost, and there is no norm, dropout or sum over tp between.
bool adds_to_flow(const WalkContext&, const LayerParams&, Segment::Kind half);

Flow attention_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                       const Flow& in, const OutputPlace&);
/// Forward up to the output projection. Computes what the state lacks, by the same operators and so with the
/// same bits.
void attention_state(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                     const Flow& in);
/// The output projection and the norm after it, if there is one: the segment's contribution.
void attention_output(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                      const OutputPlace&);
/// Memory for the gradient of query, key and value.
kernels::Tensor attention_gradient(const WalkContext&, kernels::Arena&);
/// Writes that gradient to `dqkv` of the state, or to new memory in the frame.
void attention_backward_input(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                              const kernels::Tensor& dflow_TD, const kernels::Tensor& dx_TD, BackwardMode);
void attention_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&,
                               const kernels::Tensor& dflow_TD);

/// The activation of a gated MLP's gate.
kernels::Gate gate_of(const job::ModelOptions&);
Flow mlp_forward(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                 const Flow& in, const OutputPlace&);
/// Recomputes what the state lacks for backward, like `attention_state`. Only a norm after the down
/// projection needs that projection's output.
void mlp_recompute(const WalkContext&, const LayerParams&, const ActivationArenas&, SegmentState&,
                   const Flow& in);
void mlp_backward_input(const WalkContext&, const LayerParams&, Frame&, SegmentState&,
                        const kernels::Tensor& dflow_TD, const kernels::Tensor& dx_TD, const LossTarget&,
                        BackwardMode);
void mlp_backward_weight(const WalkContext&, const LayerParams&, const SegmentState&,
                         const kernels::Tensor& dflow_TD);

void head_forward(const WalkContext&, const ActivationArenas&, SegmentState&, const Flow& in);
/// The logits for one row, before `logit_softcap`.
void head_logits(const WalkContext&, const SegmentState&, std::int64_t row, const kernels::Tensor& logits_1V);
/// The loss only.
void head_loss(const WalkContext&, const SegmentState&, const LossTarget&);
/// The loss, the head's gradients, and the gradient of the segment's input.
void head_backward(const WalkContext&, const SegmentState&, const LossTarget&, const kernels::Tensor& dx_TD);

}  // namespace trainerd::core::model
