#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/problems.h"

namespace trainerd::core {

/// A model preset compiled into the binary from configs/models/<name>.yaml.
struct PresetText {
  const char* name;
  const char* text;
};
std::span<const PresetText> preset_texts();

/// Puts "a.b=value" into the tree, over what is there; makes the sections on the way.
void apply_override(Node& root, const std::string& argument, Problems& problems);

/// Merges the model preset that the tree names below the tree's own `model` keys. Returns the source index of
/// the preset, if there is one. A preset that is a file leaves no trace but its values, so that the result
/// stands alone.
std::optional<int> merge_preset(Node& root, Problems& problems);

/// Reads a whole text file of at most 1 MiB. Throws SpecError.
std::string read_text_file(const std::string& path);

}  // namespace trainerd::core
