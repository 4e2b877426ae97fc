#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Hashes of the master weights and optimizer states that this rank updates. Nothing but an update writes
/// them, so hashes made after one update and before the next are equal, or the memory has changed by itself.
class StateHashes {
 public:
  explicit StateHashes(const model::ParamStore& params);

  /// "layers.0.down.weight", "optimizer.moment1.layers.0.down.weight"; a tensor cut over several buckets has
  /// several.
  const std::vector<std::string>& names() const { return names_; }
  std::int64_t count() const { return static_cast<std::int64_t>(tensors_.size()); }
  /// `out`: i32 [count, 2].
  void make(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& out) const;

 private:
  std::vector<std::string> names_;
  std::vector<kernels::Tensor> tensors_;
};

}  // namespace trainerd::core::train
