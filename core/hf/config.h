#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/hf/elements.h"
#include "core/hf/tensor_names.h"
#include "core/job/model_options.h"

// Conversion between a Hugging Face config.json and this program's options.

namespace trainerd::core::hf {

/// The parts of a config.json that training uses.
struct SourceConfig {
  std::string family;       ///< its model_type: "llama"
  job::ModelOptions model;  ///< `seq_len` is the longest that the file allows
  /// Layers behind the model's in its files, which predict further tokens and are not read.
  std::int64_t further_layers = 0;
  std::vector<std::string> notes;  ///< differences in training here, such as dropout, for the user
};

/// Reads config.json as written by transformers 4 and 5. Every field must be known: it sets an option of the
/// model, or has the only value supported here, or does not change the computation. Throws CheckpointError
/// with all problems, one per line, such as an unknown architecture or field.
SourceConfig read_config(const std::string& text, const std::string& path);

/// The config.json of `model` in a family, for transformers 4 and 5. `source`: the config.json of the model
/// that training began from; may be empty. Its token ids and other fields without a meaning here are kept.
std::string write_config(const std::string& family, const job::ModelOptions& model, const std::string& source,
                         Element element);

/// The family to write `model` in: that of `source`, a config.json, if it can express the model (and `source`
/// is not empty); else the first that can. Throws CheckpointError if none can.
std::string family_of(const job::ModelOptions& model, const std::string& source);

/// The model_types of all families.
std::vector<std::string> family_names();
/// The names of a family's tensors.
std::span<const TensorRule> tensor_rules(const std::string& family);
/// True if a tensor in the model's files is not read: a constant table that programs compute themselves, or
/// of a further layer.
bool is_left_out(const SourceConfig& config, const std::string& name);

}  // namespace trainerd::core::hf
