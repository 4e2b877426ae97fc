#pragma once

#include <functional>
#include <vector>

#include "core/model/model_chunk.h"
#include "kernels/ops/orthogonal.h"

namespace trainerd::core::model {

/// The adapter of a linear layer as operators read it, during one walk over the layer. If it adapts only some
/// projections of a merged weight, each with its own rows in B, then B is spread to the rows of the whole
/// weight: of n projections, number i has its rows in columns [i R, (i + 1) R) of n R, with 0 elsewhere. So
/// one GEMM handles all n, with R columns each.
class AdapterWalk {
 public:
  /// `params` may have no adapter.
  AdapterWalk(const WalkContext& walk, const LinearParams& params);

  /// Null if the layer has no adapter.
  const parallel::Adapter* get() const { return params_.adapter.present() ? &adapter_ : nullptr; }

  using Make = std::function<void(const parallel::AdapterWgrad&)>;
  /// Calls `make` with the destinations of the gradients, then gathers those of a spread B. Counts as a
  /// gradient contribution of this step.
  void gradients(const kernels::Tensor& dy_TN, const kernels::Tensor& x_TC, const Make& make) const;

 private:
  bool spread() const;
  void spread_b(const kernels::Tensor& b);
  void gather_b(const kernels::Tensor& spread, const kernels::Tensor& grad, kernels::WriteMode mode) const;
  kernels::Shape spread_shape() const;
  std::vector<kernels::MatrixBox> boxes() const;

  const WalkContext& walk_;
  const LinearParams& params_;
  kernels::ArenaScope scope_;
  Lease a_, b_;
  parallel::Adapter adapter_;
};

}  // namespace trainerd::core::model
