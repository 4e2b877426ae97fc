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

/// One kind of preset: its key and its built-in presets.
struct PresetKind {
  const char* key;     ///< "model.preset"
  const char* folder;  ///< "configs/models/": the name of built-in presets in messages
  std::span<const PresetText> texts;
  std::vector<std::string> other_names = {};  ///< valid names that are no presets
};
struct PresetSource {
  std::string name;  ///< name for messages
  std::string text;
};
/// True if a preset's name is a path: it has a '/' or ends in ".yaml".
bool is_file_name(const std::string& preset);
/// The absolute form of a path: of the file beside the job, in `directory`, if there is one, else from the
/// working directory.
std::string absolute_path(const std::string& path, const std::string& directory);
/// Makes the paths of preset files absolute. A path without a file stays.
void anchor_presets(Node& root, const std::string& directory);
/// The preset `name`: built in, or a file. Nothing, with a problem at `place`, if there is none.
std::optional<PresetSource> find_preset(const PresetKind& kind, const std::string& name, const Place& place,
                                        Problems& problems);
/// The text of a file of at most 1 MiB. If it cannot be read: nothing, and the reason in `wrong`. Does not
/// read pipes or devices, which could block for ever.
std::optional<std::string> read_plain_file(const std::string& path, std::string& wrong);
/// Names of the built-in presets.
std::vector<std::string> names_of(std::span<const PresetText> texts);
/// Keys of a job, as "model.hidden", to which the two model presets give different values; empty names are no
/// preset. Nothing of a preset that cannot be read.
std::vector<std::string> keys_that_model_presets_differ_in(const std::string& one, const std::string& other);
/// Names that the key at `path` takes beside files; empty where it names no preset.
std::vector<std::string> preset_names_at(const std::string& path);

/// The primary name of the key at `path`; some keys have two names.
std::string first_name(const std::string& path);
/// Gives the keys of a file their first names; a problem where both are there.
void use_first_names(Node& root, Problems& problems);
/// Restores the names as written in the file, for messages about their values.
void use_given_names(Node& root, Problems& problems);

/// Sets "a.b=value" in the tree, over an existing value, and creates missing sections. "a.b=~" removes the
/// key.
void apply_override(Node& root, const std::string& argument, Problems& problems);

/// Sets `value` at the dotted `path`, over an existing value, and creates missing sections. `place` is that
/// of the key and of new sections. A problem if a part of the path is no map. A value written as `~` removes
/// the key and creates nothing.
void put_value(Node& root, const std::string& path, Node value, const Place& place, Problems& problems);
/// The value at the dotted `path`; null: there is none.
const Node* find_value(const Node& root, const std::string& path);

/// Merges the entry below the map: maps key by key; any other existing value of the map stays.
void put_below(Node& map, Entry entry);

/// Merges the tree's model preset below its own `model` keys. Returns the preset's source index, if there is
/// one. Of a preset file only its values remain, so that the result is self-contained.
std::optional<int> merge_preset(Node& root, Problems& problems);

/// Reads a whole text file of at most 1 MiB. Throws SpecError.
std::string read_text_file(const std::string& path);

}  // namespace trainerd::core::spec
