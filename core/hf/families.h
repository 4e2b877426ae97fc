#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/hf/config_fields.h"
#include "core/hf/tensor_names.h"

// The table of model families. For sources of this room alone.

namespace trainerd::core::hf {

/// A row: what transformers calls it, what its models have in common, how its tensors are called, and every
/// field of its config.json.
struct Family {
  std::string model_type;    ///< "llama"
  std::string architecture;  ///< "LlamaForCausalLM"
  job::ModelOptions common;
  std::span<const TensorRule> tensors;
  std::vector<Field> fields;
  /// Ends of names of tensors that are constant tables, kept by files of older versions.
  std::vector<std::string> tables;
};

/// In the order in which a model without a source looks for its family.
const std::vector<Family>& families();
/// Null: there is none of that name.
const Family* find_family(const std::string& model_type);

}  // namespace trainerd::core::hf
