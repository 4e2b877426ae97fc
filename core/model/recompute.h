#pragma once

// Activation recomputation: what a layer keeps from forward to backward, and where backward recomputes the
// rest. The same operators compute it from the same bytes, so every kind gives the same training bits.
//
//   none       all that backward reads
//   selective  the sums at the start of each half-layer and the output of its first GEMM; norms, attention
//              and the activation function are recomputed (Korthikanti et al., Reducing Activation
//              Recomputation in Large Transformer Models, arXiv 2205.05198, section 5, which keeps the
//              norms' outputs)
//   full       the sum at the start of the layer (Chen et al., Training Deep Nets with Sublinear Memory
//              Cost, arXiv 1604.06174)

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// The kind of one layer; `layer` counts over the whole model.
job::RecomputeKind recompute_of(const job::RecomputeOptions& options, std::int64_t layer);

/// Arenas for the forward pass. What is not kept goes to `scratch`, which the caller releases after the
/// segment. `sum`: for the sum at the start of the segment.
ActivationArenas forward_arenas(job::RecomputeKind kind, const Frame& frame, kernels::Arena& scratch,
                                kernels::Arena& sum);
/// Arenas for recomputation. What the weight gradients read goes to the gradients' arena, the rest to
/// `scratch`, until the caller is done with the span.
ActivationArenas recompute_arenas(const Frame& frame, kernels::Arena& scratch);
/// The part of a half-layer's state that is kept after the forward pass.
SegmentState kept_state(job::RecomputeKind kind, Segment::Kind half, const job::ModelOptions& model,
                        const SegmentState& state);

}  // namespace trainerd::core::model
