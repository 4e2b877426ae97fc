#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/hf/config_fields.h"
#include "core/hf/tensor_names.h"

// The table of model families. Internal to core/hf.

namespace trainerd::core::hf {

/// A row: the family's names in transformers, common options of its models, names of its tensors, and all
/// fields of its config.json.
struct Family {
  std::string model_type;    ///< "llama"
  std::string architecture;  ///< "LlamaForCausalLM"
  job::ModelOptions common;
  std::span<const TensorRule> tensors;
  std::vector<Field> fields;
  /// Name suffixes of constant tables in files of older versions.
  std::vector<std::string> tables;
};

/// In order of preference for a model without a source.
const std::vector<Family>& families();
/// Null if there is no family of this name.
const Family* find_family(const std::string& model_type);

}  // namespace trainerd::core::hf
