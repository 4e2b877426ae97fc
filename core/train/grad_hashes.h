#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Hashes of the reduced gradients that this rank updates its state with: equal ones of two computations of a
/// step mean equal bits. They take the place of a second copy of the gradients.
class GradHashes {
 public:
  explicit GradHashes(const model::ParamStore& params);

  /// Of the tensor that each hash is of; one cut over several buckets has several.
  const std::vector<std::string>& names() const { return names_; }
  std::int64_t count() const { return static_cast<std::int64_t>(tensors_.size()); }
  /// `out`: i32 [count, 2].
  void make(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& out) const;

 private:
  std::vector<std::string> names_;
  std::vector<kernels::Tensor> tensors_;
};

}  // namespace trainerd::core::train
