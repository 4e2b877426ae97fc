#include "core/model/linear.h"

#include "core/model/adapter_walk.h"
#include "kernels/base/error.h"

namespace trainerd::core::model {

using namespace kernels;

void Linear::forward(const Tensor& x_TC, const Tensor& y_TN, const Tensor& addend_TN) const {
  const Lease weight = walk_.params.use(params_.weight, WeightForm::fprop, walk_.stream);
  const Lease bias = walk_.params.use(params_.bias, WeightForm::plain, walk_.stream);
  const AdapterWalk adapter(walk_, params_);
  const LinearFprop a{
      .x_TC = x_TC, .weight = weight.weight(), .bias_N = bias.tensor(), .addend_TN = addend_TN, .y_TN = y_TN};
  switch (split_) {
    case LinearSplit::whole:
      walk_.backend().linear_fprop(walk_.stream, a);
      if (adapter.get() != nullptr)
        parallel::add_adapter(walk_.backend(), walk_.stream, *adapter.get(), x_TC, y_TN);
      return;
    case LinearSplit::row: return parallel::row_linear(walk_.tp, walk_.stream, a, adapter.get());
    case LinearSplit::column:
    case LinearSplit::latent: return parallel::column_linear(walk_.tp, walk_.stream, a, adapter.get());
  }
}

void Linear::forward_gated(Gate gate, const Tensor& x_TC, const Tensor& gate_up_T2F,
                           const Tensor& act_TF) const {
  base::check(split_ == LinearSplit::column, "gate and up are cut by their outputs");
  if (params_.bias != kNoParam || params_.adapter.present()) {
    forward(x_TC, gate_up_T2F);
    walk_.backend().glu_forward(walk_.stream, {.gate = gate, .gate_up_T2F = gate_up_T2F, .act_TF = act_TF});
    return;
  }
  const Lease weight = walk_.params.use(params_.weight, WeightForm::fprop, walk_.stream);
  parallel::column_linear_swiglu(
      walk_.tp, walk_.stream,
      {.gate = gate, .x_TC = x_TC, .weight = weight.weight(), .gate_up_T2F = gate_up_T2F, .act_TF = act_TF});
}

void Linear::backward_input(const Tensor& dy_TN, const Tensor& x_TC, const Tensor& dx_TC,
                            BackwardMode backward, WriteMode mode) const {
  base::check(mode == WriteMode::assign || split_ == LinearSplit::whole, "a sum over tp is assigned");
  if (params_.adapter.present()) return backward_input_adapted(dy_TN, x_TC, dx_TC, backward, mode);
  const Lease weight = walk_.params.use(params_.weight, WeightForm::dgrad, walk_.stream);
  const LinearDgrad dgrad{.dy_TN = dy_TN, .weight = weight.weight(), .dx_TC = dx_TC, .mode = mode};
  if (parallel::DelayedWgrads* const later = delayed(backward)) {
    if (split_ == LinearSplit::row) parallel::row_linear_dgrad(walk_.tp, walk_.stream, dgrad, *later);
    else parallel::column_linear_dgrad(walk_.tp, walk_.stream, dgrad, x_TC, *later);
    if (split_ == LinearSplit::row) later->delay_row(delayed_gradient(dy_TN, x_TC));
    else later->delay_column(delayed_gradient(dy_TN, x_TC));
    return;
  }
  const std::optional<LinearWgrad> wgrad = fused_gradient(dy_TN, x_TC, backward);
  if (split_ == LinearSplit::row) return parallel::row_linear_dgrad(walk_.tp, walk_.stream, dgrad, wgrad);
  if (split_ == LinearSplit::whole) {
    walk_.backend().linear_dgrad(walk_.stream, dgrad);
    if (wgrad) walk_.backend().linear_wgrad(walk_.stream, *wgrad);
  } else if (wgrad) parallel::column_linear_backward(walk_.tp, walk_.stream, dgrad, *wgrad);
  else parallel::column_linear_dgrad(walk_.tp, walk_.stream, dgrad);
}

void Linear::backward_input_gated(Gate gate, const Tensor& dy_TD, const Tensor& gate_up_T2F,
                                  const Tensor& dgate_up_T2F, const Tensor& act_TF,
                                  BackwardMode backward) const {
  base::check(split_ == LinearSplit::row, "the layer behind a gate is cut by its inputs");
  if (params_.adapter.present()) {
    const ArenaScope scope(walk_.stream.scratch());
    const Tensor dact_TF = walk_.stream.scratch().take(act_TF.dtype, act_TF.shape, MemoryTerm::activations);
    walk_.backend().glu_forward(walk_.stream, {.gate = gate, .gate_up_T2F = gate_up_T2F, .act_TF = act_TF});
    backward_input_adapted(dy_TD, act_TF, dact_TF, backward);
    walk_.backend().glu_backward(walk_.stream, {.gate = gate,
                                                .dact_TF = dact_TF,
                                                .gate_up_T2F = gate_up_T2F,
                                                .dgate_up_T2F = dgate_up_T2F,
                                                .act_TF = {}});
    return;
  }
  const Lease weight = walk_.params.use(params_.weight, WeightForm::dgrad, walk_.stream);
  const LinearDgradSwiglu dgrad{.gate = gate,
                                .dy_TD = dy_TD,
                                .weight = weight.weight(),
                                .gate_up_T2F = gate_up_T2F,
                                .dgate_up_T2F = dgate_up_T2F,
                                .act_TF = act_TF};
  if (parallel::DelayedWgrads* const later = delayed(backward)) {
    parallel::row_linear_dgrad_swiglu(walk_.tp, walk_.stream, dgrad, *later);
    return later->delay_row(delayed_gradient(dy_TD, act_TF));
  }
  parallel::row_linear_dgrad_swiglu(walk_.tp, walk_.stream, dgrad, fused_gradient(dy_TD, act_TF, backward));
}

void Linear::backward_input_adapted(const Tensor& dy_TN, const Tensor& x_TC, const Tensor& dx_TC,
                                    BackwardMode backward, WriteMode mode) const {
  const Lease weight = walk_.params.use(params_.weight, WeightForm::dgrad, walk_.stream);
  const AdapterWalk adapter(walk_, params_);
  const LinearDgrad dgrad{.dy_TN = dy_TN, .weight = weight.weight(), .dx_TC = dx_TC, .mode = mode};
  if (split_ == LinearSplit::whole) {
    walk_.backend().linear_dgrad(walk_.stream, dgrad);
    parallel::add_adapter_dgrad(walk_.backend(), walk_.stream, *adapter.get(), dy_TN, dx_TC);
    if (backward == BackwardMode::split) return;
    return adapter.gradients(dy_TN, x_TC, [&](const parallel::AdapterWgrad& wgrad) {
      parallel::adapter_wgrad(walk_.backend(), walk_.stream, wgrad);
    });
  }
  if (backward == BackwardMode::split) {
    if (split_ == LinearSplit::row)
      parallel::row_linear_dgrad(walk_.tp, walk_.stream, dgrad, *adapter.get(), {});
    else parallel::column_linear_dgrad(walk_.tp, walk_.stream, dgrad, adapter.get());
    return;
  }
  adapter.gradients(dy_TN, x_TC, [&](const parallel::AdapterWgrad& wgrad) {
    if (split_ == LinearSplit::row)
      parallel::row_linear_dgrad(walk_.tp, walk_.stream, dgrad, wgrad.adapter, wgrad);
    else parallel::column_linear_backward(walk_.tp, walk_.stream, dgrad, wgrad);
  });
}

void Linear::backward_weight(const Tensor& dy_TN, const Tensor& x_TC) const {
  if (params_.adapter.present())
    return AdapterWalk(walk_, params_).gradients(dy_TN, x_TC, [&](const parallel::AdapterWgrad& wgrad) {
      if (split_ == LinearSplit::whole) parallel::adapter_wgrad(walk_.backend(), walk_.stream, wgrad);
      else if (split_ == LinearSplit::row) parallel::row_linear_wgrad(walk_.tp, walk_.stream, wgrad);
      else parallel::column_linear_wgrad(walk_.tp, walk_.stream, wgrad);
    });
  if (!trainable()) return;
  if (parallel::DelayedWgrads* const later = delayed(BackwardMode::fused)) {
    const std::function<void()> gradient = delayed_gradient(dy_TN, x_TC);
    if (split_ == LinearSplit::row)
      return parallel::row_linear_wgrad(walk_.tp, walk_.stream, dy_TN, *later, gradient);
    return parallel::column_linear_wgrad(walk_.tp, walk_.stream, x_TC, *later, gradient);
  }
  const LinearWgrad wgrad = weight_gradient(dy_TN, x_TC);
  if (split_ == LinearSplit::whole) walk_.backend().linear_wgrad(walk_.stream, wgrad);
  else if (split_ == LinearSplit::row) parallel::row_linear_wgrad(walk_.tp, walk_.stream, wgrad);
  else parallel::column_linear_wgrad(walk_.tp, walk_.stream, wgrad);
}

parallel::DelayedWgrads* Linear::delayed(BackwardMode backward) const {
  const bool delays = split_ == LinearSplit::column || split_ == LinearSplit::row;
  return delays && backward == BackwardMode::fused && trainable() ? walk_.delayed : nullptr;
}

// The gradient counts as a contribution of this step when it is computed, and may be the last of its unit:
// that must be reduced before the next layer's gradients are written.
std::function<void()> Linear::delayed_gradient(const Tensor& dy_TN, const Tensor& x_TC) const {
  const bool row = split_ == LinearSplit::row;
  return [linear = *this, dy = row ? walk_.delayed->dy_TD() : dy_TN, x = row ? x_TC : walk_.delayed->x_TD()] {
    linear.walk_.backend().linear_wgrad(linear.walk_.stream, linear.weight_gradient(dy, x));
    linear.walk_.params.reduce_complete_grads();
  };
}

LinearWgrad Linear::weight_gradient(const Tensor& dy_TN, const Tensor& x_TC) const {
  const WriteMode mode = walk_.params.grad_mode(params_.weight);
  if (params_.bias != kNoParam)
    base::check(walk_.params.grad_mode(params_.bias) == mode, "a weight and its bias get gradients together");
  return {.dy_TN = dy_TN,
          .x_TC = x_TC,
          .dweight_NC = walk_.params.grad(params_.weight),
          .dbias_N = walk_.params.grad(params_.bias),
          .mode = mode,
          .format = walk_.params.gemm_format(params_.weight)};
}

std::optional<LinearWgrad> Linear::fused_gradient(const Tensor& dy_TN, const Tensor& x_TC,
                                                  BackwardMode backward) const {
  if (backward == BackwardMode::split || !trainable()) return std::nullopt;
  return weight_gradient(dy_TN, x_TC);
}

}  // namespace trainerd::core::model
