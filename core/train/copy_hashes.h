#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Hashes of the state that other ranks hold too: parameters as operators read them, master weights and
/// optimizer states, per slice of the logical tensors. Equal slices have equal names on all ranks, so hashes
/// with the same name must be equal.
class CopyHashes {
 public:
  explicit CopyHashes(const model::ParamStore& params);

  /// "layers.0.down.weight [0:64, 0:88]".
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
