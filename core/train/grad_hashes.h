#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Hashes of the reduced gradients with which this rank updates its state. Two computations of a step with
/// equal hashes have equal bits, so no second copy of the gradients is needed.
class GradHashes {
 public:
  explicit GradHashes(const model::ParamStore& params);

  /// By hash: name of its tensor. A tensor cut over several buckets has several hashes.
  const std::vector<std::string>& names() const { return names_; }
  std::int64_t count() const { return static_cast<std::int64_t>(tensors_.size()); }
  /// Writes the hashes to `out`: i32 [count, 2].
  void make(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& out) const;

 private:
  std::vector<std::string> names_;
  std::vector<kernels::Tensor> tensors_;
  std::vector<bool> on_host_;
};

}  // namespace trainerd::core::train
