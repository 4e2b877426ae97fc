#pragma once

#include <vector>

#include "core/model/batch.h"
#include "kernels/memory/memory.h"
#include "parallel/expert/expert.h"

namespace trainerd::core::model {

/// Destinations of what a segment's forward computes, by its recompute cost and by the walk that last reads
/// it.
struct ActivationArenas {
  kernels::Arena& sum;                ///< the residual stream at the start of the segment
  kernels::Arena& gemms_to_backward;  ///< query, key and value projection; input of a post-norm
  kernels::Arena& gemms_to_weight;    ///< up projection
  kernels::Arena& cheap_to_backward;  ///< statistics of norms and attention, normed heads
  kernels::Arena& cheap_to_weight;    ///< outputs of norms, attention and the activation function
};

/// A latent of each token, and its norm.
struct LatentState {
  kernels::Tensor raw_TL, normed_TL, rstd_T;
};

/// What one half-layer (attention or MLP), the embedding or the head keeps between its walks. Tensors that a
/// segment does not use are undefined. Letters as in kernels/ops/ops.h.
struct SegmentState {
  // The norm before the segment.
  kernels::Tensor sum_TD;   ///< residual + delta
  kernels::Tensor host_TD;  ///< the same in host memory, from forward to backward; see FlowOffload
  kernels::Tensor y_TD;     ///< the norm's output
  kernels::Tensor mean_T;
  kernels::Tensor rstd_T;
  // Attention.
  kernels::Tensor projected;      ///< qkv before the heads' norm; only with qk_norm
  kernels::Tensor qk_squares_T2;  ///< sums over the heads of all ranks; only if tp cuts the span of qk_norm
  kernels::Tensor qkv;            ///< as attention reads it
  LatentState q_latent, kv_latent;
  kernels::Tensor k_rope_TR;  ///< the keys' shared elements before their rotation
  kernels::Tensor attended;   ///< [T, H Ev]
  kernels::Tensor lse;        ///< of the heads and tokens whose attention is computed here, see `attend`
  // The norm after the segment, if there is one.
  kernels::Tensor out_TD;      ///< the segment's output before that norm
  kernels::Tensor out_mean_T;  ///< as `mean_T`, of that norm
  kernels::Tensor out_rstd_T;
  // MLP.
  kernels::Tensor up;   ///< gate_up [T, 2F], or up [T, F]; backward overwrites it with its gradient
  kernels::Tensor act;  ///< [T, F]
  // MLP with experts: `up` and `act` have R rows. See kernels/ops/experts.h.
  kernels::Tensor probs_TE, expert_TK, weight_TK;
  kernels::Tensor first_E, source_R, row_TK;
  parallel::TokenSlots slots;
  kernels::Tensor shared_up, shared_act;  ///< as `up` and `act`, of the shared MLP
  kernels::Tensor shared_factor_T1;       ///< f32
  // From the walk for input gradients to that for weight gradients.
  kernels::Tensor dflow_TD;  ///< gradient of the segment's contribution
  /// Gradient before the post-norm, `residual_scale` and dropout; undefined without them.
  kernels::Tensor dout_TD;
  kernels::Tensor dqkv;
  kernels::Tensor dq_TC, dkv_TC, ddown_TC;  ///< of the outputs of LatentParams' projections
  kernels::Tensor dlogits_TE;               ///< of the router
  kernels::Tensor dshared_logits_T1;        ///< of the shared MLP's factor
};

/// The state of one (chunk, microbatch) between its walks, in its planned slots.
struct Frame {
  kernels::Arena* to_backward = nullptr;  ///< forward to backward
  kernels::Arena* to_weight = nullptr;    ///< forward to weight gradient
  kernels::Arena* grads = nullptr;        ///< backward to weight gradient
  kernels::Arena* host = nullptr;         ///< forward to backward, in host memory
  Batch batch;
  kernels::Tensor in_TD;  ///< summed flow from the previous chunk; undefined in the first
  std::vector<SegmentState> segments;
};

}  // namespace trainerd::core::model
