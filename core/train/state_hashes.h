#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Hashes of the master weights and optimizer states that this rank updates, with ZeRO 3 also of its part of
/// the parameters in 16 bits. Only updates write them. So hashes after one update and before the next must be
/// equal; else memory was corrupted.
class StateHashes {
 public:
  explicit StateHashes(const model::ParamStore& params);

  /// "layers.0.down.weight", "optimizer.moment1.layers.0.down.weight". A tensor cut over several buckets has
  /// several hashes.
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
