#pragma once

#include <cstdint>
#include <optional>

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// How tensor parallelism cuts a linear layer's weight [N, C]: by its outputs (the projection that opens a
/// segment: x is a flow) or by its inputs (the one that closes it: y is a flow). See
/// parallel/tensor/linear.h.
enum class LinearSplit : std::uint8_t { column, row };

/// A linear layer of a segment, y = x W^T + b: the leases on its weight and bias, its parallel operators and
/// its weight gradient, or in its place that of its adapter. Whatever changes how a linear layer computes (an
/// adapter, a format, an expert's GEMM) is a branch in here. Lives within one walk.
class Linear {
 public:
  Linear(const WalkContext& walk, const LinearParams& params, LinearSplit split)
      : walk_(walk), params_(params), split_(split) {}

  /// `addend_TN`, optional, is added by the product.
  void forward(const kernels::Tensor& x_TC, const kernels::Tensor& y_TN,
               const kernels::Tensor& addend_TN = {}) const;
  /// Gate and up in one column-parallel layer, then act = silu(gate) * up, or GELU's.
  void forward_gated(kernels::Gate gate, const kernels::Tensor& x_TC, const kernels::Tensor& gate_up_T2F,
                     const kernels::Tensor& act_TF) const;
  /// dx, assigned; with BackwardMode::fused the gradients of the weight and bias too, of which x is read,
  /// where they are trainable.
  void backward_input(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC, const kernels::Tensor& dx_TC,
                      BackwardMode backward) const;
  /// The same of a row-parallel layer behind a gated MLP's activation: its input act is made again from gate
  /// and up, whose gradient is `dgate_up_T2F`, which may be `gate_up_T2F`.
  void backward_input_gated(kernels::Gate gate, const kernels::Tensor& dy_TD,
                            const kernels::Tensor& gate_up_T2F, const kernels::Tensor& dgate_up_T2F,
                            const kernels::Tensor& act_TF, BackwardMode backward) const;
  /// The gradients of the weight and bias, where BackwardMode::split left them.
  void backward_weight(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC) const;

 private:
  bool trainable() const { return walk_.params.info(params_.weight).trainable; }
  void backward_input_adapted(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC,
                              const kernels::Tensor& dx_TC, BackwardMode backward) const;
  /// Counted as a contribution of this step.
  kernels::LinearWgrad weight_gradient(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC) const;
  std::optional<kernels::LinearWgrad> fused_gradient(const kernels::Tensor& dy_TN,
                                                     const kernels::Tensor& x_TC,
                                                     BackwardMode backward) const;

  const WalkContext& walk_;
  const LinearParams& params_;
  LinearSplit split_;
};

}  // namespace trainerd::core::model
