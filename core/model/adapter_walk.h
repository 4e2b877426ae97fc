#pragma once

#include <functional>
#include <vector>

#include "core/model/model_chunk.h"
#include "kernels/ops/orthogonal.h"

namespace trainerd::core::model {

/// The adapter of a linear layer as operators read it, for the time of one walk over the layer. Where it is
/// of some of a merged weight's projections, each with rows of its own in B, B is spread to the rows of the
/// whole weight: projection i of n has its rows in columns [i R, (i + 1) R) of n R, and 0 elsewhere. So the
/// products of all n are one, at R columns for each.
class AdapterWalk {
 public:
  /// `params` may have none.
  AdapterWalk(const WalkContext& walk, const LinearParams& params);

  /// Null: the layer has none.
  const parallel::Adapter* get() const { return params_.adapter.present() ? &adapter_ : nullptr; }

  using Make = std::function<void(const parallel::AdapterWgrad&)>;
  /// Calls `make` with where the gradients go, and brings those of a B that was spread together. Counted as a
  /// contribution of this step.
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
