#pragma once

#include <string>
#include <vector>

#include "io/storage/storage.h"

// Files of a Hugging Face directory beside config.json. Internal to core/hf.

namespace trainerd::core::hf {

inline constexpr const char* kIndex = "model.safetensors.index.json";

/// Names of the weight files. Throws CheckpointError.
std::vector<std::string> weight_files(const io::Storage& storage);
/// Text of generation_config.json. Throws CheckpointError if it is no JSON object, or its end tokens are no
/// ids.
std::string checked_generation_config(const io::Storage& storage, const std::string& path);

}  // namespace trainerd::core::hf
