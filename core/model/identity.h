#pragma once

#include <map>
#include <string>

#include "core/job/model_options.h"

namespace trainerd::core::model {

/// What a checkpoint says of its model: `model.layers` and so on, everything that its weights mean something
/// by. Equal models have equal texts, and only they.
std::map<std::string, std::string> model_identity(const job::ModelOptions& model);

/// The model of such entries; others in `identity` are left alone. Throws CheckpointError naming `path` and
/// the entry that is missing or not understood.
job::ModelOptions model_of(const std::map<std::string, std::string>& identity, const std::string& path);

/// The same of adapters, under keys that begin with kLoraKeys; no entries without them.
inline constexpr const char* kLoraKeys = "lora.";
std::map<std::string, std::string> lora_identity(const job::LoraOptions& lora);
job::LoraOptions lora_of(const std::map<std::string, std::string>& identity, const std::string& path);

}  // namespace trainerd::core::model
