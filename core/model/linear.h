#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// How tensor parallelism cuts a linear layer's weight [N, C]: by outputs (the first projection of a segment,
/// whose x is a flow) or by inputs (the last one, whose y is a flow). See parallel/tensor/linear.h. `latent`:
/// like column, but the gradient is never delayed. `whole`: not cut; x and y are flows.
enum class LinearSplit : std::uint8_t { column, row, latent, whole };

/// A linear layer of a segment, y = x W^T + b: leases on weight and bias, parallel operators, and the
/// gradients of the weight or of its adapter. Variants of a linear layer (an adapter, a format, an expert's
/// GEMM) are branches in here. Lives within one walk.
class Linear {
 public:
  Linear(const WalkContext& walk, const LinearParams& params, LinearSplit split)
      : walk_(walk), params_(params), split_(split) {}

  /// `addend_TN` is optional; the GEMM adds it.
  void forward(const kernels::Tensor& x_TC, const kernels::Tensor& y_TN,
               const kernels::Tensor& addend_TN = {}) const;
  /// Gate and up projection in one column-parallel layer, then act = silu(gate) * up, or with GELU.
  void forward_gated(kernels::Gate gate, const kernels::Tensor& x_TC, const kernels::Tensor& gate_up_T2F,
                     const kernels::Tensor& act_TF) const;
  /// Assigns dx, or adds to it, which only LinearSplit::whole can. With BackwardMode::fused it also computes
  /// the gradients of weight and bias, if they are trainable, or delays them (WalkContext::delayed); only
  /// these read x.
  void backward_input(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC, const kernels::Tensor& dx_TC,
                      BackwardMode backward, kernels::WriteMode mode = kernels::WriteMode::assign) const;
  /// The same for the row-parallel layer after a gated MLP's activation: its input act is recomputed from
  /// gate and up. Their gradient is `dgate_up_T2F`, which may be `gate_up_T2F`.
  void backward_input_gated(kernels::Gate gate, const kernels::Tensor& dy_TD,
                            const kernels::Tensor& gate_up_T2F, const kernels::Tensor& dgate_up_T2F,
                            const kernels::Tensor& act_TF, BackwardMode backward) const;
  /// The gradients of weight and bias, after BackwardMode::split.
  void backward_weight(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC) const;

 private:
  /// The delayed gradients, if this layer's are to be among them.
  parallel::DelayedWgrads* delayed(BackwardMode backward) const;
  /// Computes the gradients later, from the buffer of the walk in which its flow operand then is.
  std::function<void()> delayed_gradient(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC) const;
  bool trainable() const { return walk_.params.info(params_.weight).trainable; }
  void backward_input_adapted(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC,
                              const kernels::Tensor& dx_TC, BackwardMode backward,
                              kernels::WriteMode mode = kernels::WriteMode::assign) const;
  /// Counts as a gradient contribution of this step.
  kernels::LinearWgrad weight_gradient(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC) const;
  std::optional<kernels::LinearWgrad> fused_gradient(const kernels::Tensor& dy_TN,
                                                     const kernels::Tensor& x_TC,
                                                     BackwardMode backward) const;

  const WalkContext& walk_;
  const LinearParams& params_;
  LinearSplit split_;
};

}  // namespace trainerd::core::model
