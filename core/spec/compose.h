#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// A preset compiled into the binary from configs/<folder>/<name>.yaml.
struct PresetText {
  const char* name;
  const char* text;
};
std::span<const PresetText> model_preset_texts();
std::span<const PresetText> cluster_preset_texts();

/// One kind of preset: the key that names it, and those that are built in.
struct PresetKind {
  const char* key;     ///< "model.preset"
  const char* folder;  ///< "configs/models/": how messages call a built-in one
  std::span<const PresetText> texts;
  std::vector<std::string> other_names = {};  ///< valid names that are no presets
};
struct PresetSource {
  std::string name;  ///< that messages call it by
  std::string text;
};
/// Whether a preset's name is a path: with a '/' in it or ending in ".yaml".
bool is_file_name(const std::string& preset);
/// The preset called `name`: built in or a file. Nothing, and a problem at `place`, if there is none.
std::optional<PresetSource> find_preset(const PresetKind& kind, const std::string& name, const Place& place,
                                        Problems& problems);
/// The text of a file of at most 1 MiB; nothing, and in `wrong` why, when it cannot be read. Never of a pipe
/// or device: reading one could wait for ever.
std::optional<std::string> read_plain_file(const std::string& path, std::string& wrong);
/// Names of the built-in presets.
std::vector<std::string> names_of(std::span<const PresetText> texts);
/// Keys of a job, as "model.hidden", to which the two model presets give different values; empty names are no
/// preset. Nothing of a preset that cannot be read.
std::vector<std::string> keys_that_model_presets_differ_in(const std::string& one, const std::string& other);
/// Names that the key at `path` takes beside files; empty where it names no preset.
std::vector<std::string> preset_names_at(const std::string& path);

/// The name under which a job has the key at `path`: some have two.
std::string first_name(const std::string& path);
/// Gives the keys of a file their first names; a problem where both are there.
void use_first_names(Node& root, Problems& problems);
/// Gives them back the names under which they were written, for what is said of their values.
void use_given_names(Node& root, Problems& problems);

/// Puts "a.b=value" into the tree, over what is there; makes the sections on the way. "a.b=~" takes the key
/// away.
void apply_override(Node& root, const std::string& argument, Problems& problems);

/// Puts `value` at the dotted `path`, over what is there; makes the sections on the way. `place` is that of
/// the key, and of a section that is made. A problem where a part of the path is no map. A value written as
/// `~` takes the key away, and makes nothing.
void put_value(Node& root, const std::string& path, Node value, const Place& place, Problems& problems);
/// The value at the dotted `path`; null: there is none.
const Node* find_value(const Node& root, const std::string& path);

/// Puts the entry below the map: maps are merged key by key, any other value of the map's own stays.
void put_below(Node& map, Entry entry);

/// Merges the model preset that the tree names below the tree's own `model` keys. Returns the source index of
/// the preset, if there is one. A preset that is a file leaves no trace but its values, so that the result
/// stands alone.
std::optional<int> merge_preset(Node& root, Problems& problems);

/// Reads a whole text file of at most 1 MiB. Throws SpecError.
std::string read_text_file(const std::string& path);

}  // namespace trainerd::core::spec
