#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/model_options.h"
#include "io/metrics/options.h"

namespace trainerd::core::train {

/// Groups of a model's trainable parameters, each with its own gradient norm. They cover the whole model and
/// are the same on every rank.
class NormGroups {
 public:
  /// No groups if the options request no norms.
  NormGroups(const io::GroupNormOptions& options, const job::ModelOptions& model);

  /// By kind: "embedding" (with positions), "attention", "mlp", "norm", "head"; with LoRA
  /// "adapters.attention", "adapters.mlp". By layer: "embedding", "layers.0", ..., "head" (with the final
  /// norm). A tied head belongs to the embedding.
  const std::vector<std::string>& names() const { return names_; }
  /// Index in `names` of a trainable parameter's group, by the parameter's checkpoint name.
  std::int32_t of(std::string_view parameter) const;

 private:
  io::NormGroups by_;
  bool adapters_;
  std::vector<std::string> names_;
};

}  // namespace trainerd::core::train
