#pragma once

#include <vector>

#include "core/model/batch.h"
#include "kernels/memory/memory.h"

namespace trainerd::core::model {

/// Where a segment's forward leaves what it makes: by how dear it is to make again, and by the walk that last
/// reads it.
struct ActivationArenas {
  kernels::Arena& sum;                ///< the residual stream where the segment starts
  kernels::Arena& gemms_to_backward;  ///< the query, key and value projection; what a post-norm reads
  kernels::Arena& gemms_to_weight;    ///< the up projection
  kernels::Arena& cheap_to_backward;  ///< statistics of norms and of attention, normed heads
  kernels::Arena& cheap_to_weight;    ///< outputs of norms, of attention and of the activation function
};

/// What one half-layer (attention or MLP), the embedding or the head leaves between its walks. Tensors that a
/// segment does not use stay undefined. Letters as in kernels/ops/ops.h.
struct SegmentState {
  // The norm that opens the segment.
  kernels::Tensor sum_TD;  ///< residual + delta
  kernels::Tensor y_TD;    ///< the norm's output
  kernels::Tensor mean_T;
  kernels::Tensor rstd_T;
  // Attention.
  kernels::Tensor projected;  ///< qkv before the heads' norm; only with qk_norm
  kernels::Tensor
      qk_squares_T2;         ///< sums over all heads of every rank; only where tp cuts what a norm is over
  kernels::Tensor qkv;       ///< as attention reads it
  kernels::Tensor attended;  ///< [T, H E]
  kernels::Tensor lse_HT;
  // The norm that closes the segment, where there is one.
  kernels::Tensor out_TD;      ///< what the segment made, before that norm
  kernels::Tensor out_mean_T;  ///< as `mean_T`, of that norm
  kernels::Tensor out_rstd_T;
  // MLP.
  kernels::Tensor up;   ///< gate_up [T, 2F], or up [T, F]; backward turns it into its gradient
  kernels::Tensor act;  ///< [T, F]
  // From the input gradient's walk to the weight gradient's.
  kernels::Tensor dflow_TD;  ///< the gradient that reached the segment's output
  /// The same behind the norm that closes the segment, `residual_scale` and dropout; undefined without them.
  kernels::Tensor dout_TD;
  kernels::Tensor dqkv;
};

/// The state of one (chunk, microbatch) between its walks, in the slots that the memory plan gave it.
struct Frame {
  kernels::Arena* to_backward = nullptr;  ///< forward to backward
  kernels::Arena* to_weight = nullptr;    ///< forward to weight gradient
  kernels::Arena* grads = nullptr;        ///< backward to weight gradient
  Batch batch;
  kernels::Tensor in_TD;  ///< the flow from the chunk before, summed; undefined in the first
  std::vector<SegmentState> segments;
};

}  // namespace trainerd::core::model
