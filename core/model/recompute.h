#pragma once

// Activation recomputation: what a layer keeps from forward to backward, and where the rest lies when
// backward makes it again. It is made by the operators of the forward pass from the bytes that they had, so
// every kind trains to the same bits.
//
//   none       everything that backward reads
//   selective  the sums at the start of each half-layer and what its first GEMM made; norms, attention and
//   the activation
//              function are made again (Korthikanti et al., Reducing Activation Recomputation in Large
//              Transformer Models, arXiv 2205.05198, section 5, which keeps the norms' outputs)
//   full       the sum at the start of the layer (Chen et al., Training Deep Nets with Sublinear Memory Cost,
//   arXiv 1604.06174)

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// What happens to one layer, counted over the whole model.
job::RecomputeKind recompute_of(const job::RecomputeOptions& options, std::int64_t layer);

/// Of the forward pass. What is not kept goes to `scratch`, which the caller gives back after the segment.
ActivationArenas forward_arenas(job::RecomputeKind kind, const Frame& frame, kernels::Arena& scratch);
/// Of making it again: what the weights' walk reads lives with the gradients, the rest in `scratch`, until
/// the caller is done with what it made again together.
ActivationArenas recompute_arenas(const Frame& frame, kernels::Arena& scratch);
/// The part of a half-layer's state that outlives the forward pass.
SegmentState kept_state(job::RecomputeKind kind, Segment::Kind half, const job::ModelOptions& model,
                        const SegmentState& state);

}  // namespace trainerd::core::model
