#include "core/model/segment_norms.h"

namespace trainerd::core::model {

using namespace kernels;

namespace {

NormKind norm_kind(const job::ModelOptions& m) {
  return m.norm == job::Norm::rms ? NormKind::rms : NormKind::layer;
}

/// Arguments for the backward of either norm of a segment.
struct NormGradient {
  Tensor dy_TD, dsum_TD, sum_TD, mean_T, rstd_T, dx_TD;
};
void norm_gradient(const WalkContext& c, const LinearParams& norm, const NormGradient& g) {
  const ArenaScope scope(c.stream.scratch());
  const Lease weight = c.params.use(norm.weight, WeightForm::plain, c.stream);
  const VectorGrads grads = vector_grads(c, norm.weight, norm.bias);
  c.backend().add_norm_backward(c.stream, {.kind = norm_kind(c.model),
                                           .dy_TD = g.dy_TD,
                                           .dsum_TD = g.dsum_TD,
                                           .sum_TD = g.sum_TD,
                                           .weight_D = weight.tensor(),
                                           .weight_offset = weight_offset(c.model),
                                           .mean_T = g.mean_T,
                                           .rstd_T = g.rstd_T,
                                           .dx_TD = g.dx_TD,
                                           .dweight_D = grads.first,
                                           .dbias_D = grads.second,
                                           .mode = grads.mode});
}

}  // namespace

bool trainable(const WalkContext& c, ParamId id) { return c.params.info(id).trainable; }

VectorGrads vector_grads(const WalkContext& c, ParamId first, ParamId second) {
  if (first == kNoParam) return {};
  VectorGrads grads;
  if (trainable(c, first)) {
    grads = {c.params.grad(first), c.params.grad(second), c.params.grad_mode(first)};
    if (second != kNoParam)
      base::check(c.params.grad_mode(second) == grads.mode,
                  "two vectors of an operator get gradients together");
    return grads;
  }
  // The operator always writes these gradients. Those of frozen vectors go to scratch and are not read.
  const auto dropped = [&](ParamId id) {
    if (id == kNoParam) return Tensor{};
    return c.stream.scratch().take(
        DType::f32, parallel::local_shape(c.params.info(id).shard, c.tp.group.size()), MemoryTerm::workspace);
  };
  return {dropped(first), dropped(second), WriteMode::assign};
}

float weight_offset(const job::ModelOptions& m) {
  return m.norm_weight == job::NormWeight::less_one ? 1.0f : 0.0f;
}

Tensor flow(const WalkContext& c, Arena& arena) {
  return arena.take(c.dtype, {c.tp.flow_rows(c.batch.tokens()), c.model.hidden}, MemoryTerm::activations);
}

Tensor statistic(const WalkContext& c, Arena& arena) {
  return arena.take(DType::f32, {c.tp.flow_rows(c.batch.tokens())}, MemoryTerm::activations);
}

void norm_forward(const WalkContext& c, const LinearParams& norm, const ActivationArenas& arenas,
                  SegmentState& state, const Flow& in) {
  // Without a delta the sum is the residual itself, which is kept where it was computed.
  if (!state.sum_TD.defined()) state.sum_TD = in.delta_TD.defined() ? flow(c, arenas.sum) : in.residual_TD;
  if (norm.weight == kNoParam) {
    if (in.delta_TD.defined()) c.backend().add(c.stream, {in.residual_TD, in.delta_TD, state.sum_TD});
    // A copy, because the weight gradients read it, possibly after the sums are released (zero bubble).
    state.y_TD = flow(c, arenas.cheap_to_weight);
    c.backend().copy(c.stream, state.sum_TD, state.y_TD);
    return;
  }
  state.rstd_T = statistic(c, arenas.cheap_to_backward);
  if (c.model.norm == job::Norm::layer) state.mean_T = statistic(c, arenas.cheap_to_backward);
  state.y_TD = flow(c, arenas.cheap_to_weight);
  const Lease weight = c.params.use(norm.weight, WeightForm::plain, c.stream);
  const Lease bias = c.params.use(norm.bias, WeightForm::plain, c.stream);
  c.backend().add_norm_forward(c.stream, {.kind = norm_kind(c.model),
                                          .eps = static_cast<float>(c.model.norm_eps),
                                          .residual_TD = in.residual_TD,
                                          .delta_TD = in.delta_TD,
                                          .weight_D = weight.tensor(),
                                          .weight_offset = weight_offset(c.model),
                                          .bias_D = bias.tensor(),
                                          .sum_TD = state.sum_TD,
                                          .y_TD = state.y_TD,
                                          .mean_T = state.mean_T,
                                          .rstd_T = state.rstd_T});
}

void norm_backward(const WalkContext& c, const LinearParams& norm, const SegmentState& state,
                   const Tensor& dy_TD, const Tensor& dsum_TD, const Tensor& dx_TD) {
  if (norm.weight != kNoParam)
    return norm_gradient(c, norm,
                         {.dy_TD = dy_TD,
                          .dsum_TD = dsum_TD,
                          .sum_TD = state.sum_TD,
                          .mean_T = state.mean_T,
                          .rstd_T = state.rstd_T,
                          .dx_TD = dx_TD});
  c.backend().add(c.stream, {dy_TD, dsum_TD, dx_TD});
}

Tensor output_place(const WalkContext& c, const LinearParams& post_norm, const ActivationArenas& arenas,
                    SegmentState& state, const Tensor& delta_TD) {
  if (post_norm.weight == kNoParam) return delta_TD;
  if (!state.out_TD.defined()) {
    // Backward reads all three. The statistics are kept wherever the projection is kept: they are small in
    // comparison.
    state.out_TD = flow(c, arenas.gemms_to_backward);
    state.out_rstd_T = statistic(c, arenas.gemms_to_backward);
    if (c.model.norm == job::Norm::layer) state.out_mean_T = statistic(c, arenas.gemms_to_backward);
  }
  return state.out_TD;
}

void post_norm_forward(const WalkContext& c, const LinearParams& post_norm, const SegmentState& state,
                       const Tensor& delta_TD) {
  if (post_norm.weight == kNoParam) return;
  const Lease weight = c.params.use(post_norm.weight, WeightForm::plain, c.stream);
  const Lease bias = c.params.use(post_norm.bias, WeightForm::plain, c.stream);
  c.backend().add_norm_forward(c.stream, {.kind = norm_kind(c.model),
                                          .eps = static_cast<float>(c.model.norm_eps),
                                          .residual_TD = state.out_TD,
                                          .delta_TD = {},
                                          .weight_D = weight.tensor(),
                                          .weight_offset = weight_offset(c.model),
                                          .bias_D = bias.tensor(),
                                          .sum_TD = state.out_TD,
                                          .y_TD = delta_TD,
                                          .mean_T = state.out_mean_T,
                                          .rstd_T = state.out_rstd_T});
}

Tensor output_gradient(const WalkContext& c, const LinearParams& post_norm, Frame& frame, SegmentState& state,
                       const Tensor& dflow_TD) {
  if (post_norm.weight == kNoParam) return dflow_TD;
  state.dout_TD = flow(c, *frame.grads);
  norm_gradient(c, post_norm,
                {.dy_TD = dflow_TD,
                 .dsum_TD = {},
                 .sum_TD = state.out_TD,
                 .mean_T = state.out_mean_T,
                 .rstd_T = state.out_rstd_T,
                 .dx_TD = state.dout_TD});
  return state.dout_TD;
}

}  // namespace trainerd::core::model
