#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/model_options.h"
#include "io/metrics/options.h"

namespace trainerd::core::train {

/// Groups of a model's trainable parameters, of which each has a gradient norm. They are those of the whole
/// model, the same on every rank.
class NormGroups {
 public:
  /// None where the options ask for no norms.
  NormGroups(const io::GroupNormOptions& options, const job::ModelOptions& model);

  /// By kind "embedding" (positions included), "attention", "mlp", "norm", "head"; with LoRA
  /// "adapters.attention", "adapters.mlp". By layer "embedding", "layers.0", ..., "head" (the last norm
  /// included). A tied head is the embedding.
  const std::vector<std::string>& names() const { return names_; }
  /// The place in `names` of the group that a trainable parameter is in, by its name in checkpoints.
  std::int32_t of(std::string_view parameter) const;

 private:
  io::NormGroups by_;
  bool adapters_;
  std::vector<std::string> names_;
};

}  // namespace trainerd::core::train
