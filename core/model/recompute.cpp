#include "core/model/recompute.h"

namespace trainerd::core::model {

job::RecomputeKind recompute_of(const job::RecomputeOptions& options, std::int64_t layer) {
  return options.kind == job::RecomputeKind::full && layer % options.every != 0 ? job::RecomputeKind::none
                                                                                : options.kind;
}

ActivationArenas forward_arenas(job::RecomputeKind kind, const Frame& frame, kernels::Arena& scratch,
                                kernels::Arena& sum) {
  kernels::Arena &to_backward = *frame.to_backward, &to_weight = *frame.to_weight;
  switch (kind) {
    case job::RecomputeKind::none: break;
    case job::RecomputeKind::selective: return {sum, to_backward, to_weight, scratch, scratch};
    case job::RecomputeKind::full: return {sum, scratch, scratch, scratch, scratch};
  }
  return {sum, to_backward, to_weight, to_backward, to_weight};
}

ActivationArenas recompute_arenas(const Frame& frame, kernels::Arena& scratch) {
  return {scratch, scratch, *frame.grads, scratch, *frame.grads};
}

SegmentState kept_state(job::RecomputeKind kind, Segment::Kind half, const job::ModelOptions& model,
                        const SegmentState& state) {
  if (kind == job::RecomputeKind::none) return state;
  SegmentState kept;
  if (kind == job::RecomputeKind::full && half == Segment::Kind::mlp)
    return kept;  // its sum is recomputed from the layer's
  kept.sum_TD = state.sum_TD, kept.host_TD = state.host_TD;
  if (kind == job::RecomputeKind::full) return kept;
  kept.projected = state.projected;
  kept.qk_squares_T2 = state.qk_squares_T2;
  if (!model.qk_norm && !model.mla.on()) kept.qkv = state.qkv;  // the same memory, rotated in place
  kept.q_latent.raw_TL = state.q_latent.raw_TL, kept.kv_latent.raw_TL = state.kv_latent.raw_TL;
  kept.k_rope_TR = state.k_rope_TR;
  kept.up = state.up;
  kept.probs_TE = state.probs_TE, kept.expert_TK = state.expert_TK, kept.weight_TK = state.weight_TK;
  kept.first_E = state.first_E, kept.source_R = state.source_R, kept.row_TK = state.row_TK;
  kept.slots = state.slots;
  kept.shared_up = state.shared_up, kept.shared_factor_T1 = state.shared_factor_T1;
  kept.out_TD = state.out_TD, kept.out_mean_T = state.out_mean_T, kept.out_rstd_T = state.out_rstd_T;
  return kept;
}

}  // namespace trainerd::core::model
