#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/hf/elements.h"
#include "core/hf/tensor_names.h"
#include "core/job/model_options.h"

// What a Hugging Face directory's config.json means here, and back.

namespace trainerd::core::hf {

/// What of a config.json concerns training.
struct SourceConfig {
  std::string family;              ///< its model_type: "llama"
  job::ModelOptions model;         ///< `seq_len` is the longest that the file allows
  std::vector<std::string> notes;  ///< what training here does otherwise, as dropout: for the user to read
};

/// Reads config.json as transformers 4 and 5 write it. Every field is known: it becomes an option of the
/// model, or has the one value that is computed here, or changes nothing that is computed. Throws
/// CheckpointError with every problem, one per line: an unknown architecture or field is one.
SourceConfig read_config(const std::string& text, const std::string& path);

/// The config.json of `model` in a family, readable by transformers 4 and 5. `source`: the config.json of the
/// model that training began from, whose token ids and other fields without a meaning here are kept; may be
/// empty.
std::string write_config(const std::string& family, const job::ModelOptions& model, const std::string& source,
                         Element element);

/// The family that `model` is written as: that of `source`, a config.json, if it can express the model (and
/// `source` is not empty); else the first that can. Throws CheckpointError when none can.
std::string family_of(const job::ModelOptions& model, const std::string& source);

/// The families' model_types.
std::vector<std::string> family_names();
/// How the tensors of a family are called.
std::span<const TensorRule> tensor_rules(const std::string& family);
/// Whether a tensor of a family's files is a constant table that its program makes by itself.
bool is_table(const std::string& family, const std::string& name);

}  // namespace trainerd::core::hf
