#pragma once

#include <map>
#include <string>

#include "core/job/model_options.h"

namespace trainerd::core::model {

/// A checkpoint's entries about its model: `model.layers` and so on, all that its weights depend on. Models
/// are equal if and only if their texts are.
std::map<std::string, std::string> model_identity(const job::ModelOptions& model);

/// The model from such entries; other entries are ignored. Throws CheckpointError that names `path` and a
/// missing or invalid entry.
job::ModelOptions model_of(const std::map<std::string, std::string>& identity, const std::string& path);

/// The same for adapters, with keys that begin with kLoraKeys; without adapters no entries.
inline constexpr const char* kLoraKeys = "lora.";
std::map<std::string, std::string> lora_identity(const job::LoraOptions& lora);
job::LoraOptions lora_of(const std::map<std::string, std::string>& identity, const std::string& path);

}  // namespace trainerd::core::model
