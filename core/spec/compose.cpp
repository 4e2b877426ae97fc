#include "core/spec/compose.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>

#include "core/spec/fields.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::spec {
namespace {

constexpr std::size_t kLongestFile = 1 << 20;

void erase(Node& map, const std::string& key) {
  std::erase_if(map.entries, [&](const Entry& entry) { return entry.key == key; });
}

struct OtherName {
  const char *section, *key;
  const char* first;  ///< primary name, at the top level
};
constexpr std::array<OtherName, 1> kOtherNames{{{"supervise", "restarts", "restarts"}}};

/// What the table says of the key beside the other that it excludes.
std::string text_of_exclusion(const std::string& path) {
  job::JobSpec job;
  const std::vector<Field> fields = spec::fields_of(job);
  const auto field = std::ranges::find_if(fields, [&](const Field& f) { return f.path == path; });
  base::check(field != fields.end() && !field->exclusions.empty(), "a second name excludes the first");
  return field->exclusions[0].what;
}

/// Gives keys their first names. Without `problems` what the other name says goes over what is there.
void rename(Node& root, Problems* problems) {
  if (root.kind != Node::Kind::map) return;
  for (const OtherName& other : kOtherNames) {
    Node* section = root.find(other.section);
    if (section == nullptr || section->kind != Node::Kind::map) continue;
    const auto said =
        std::ranges::find_if(section->entries, [&](const Entry& entry) { return entry.key == other.key; });
    if (said == section->entries.end()) continue;
    Entry entry = std::move(*said);
    section->entries.erase(said);
    entry.key = other.first;
    entry.value.other_name = true;
    if (problems != nullptr && root.find(other.first) != nullptr) {
      const std::string path = std::string(other.section) + "." + other.key;
      problems->add(entry.value.place, path, text_of_exclusion(path));
    }
    erase(root, other.first);
    root.entries.push_back(std::move(entry));
  }
}

/// Removes the key if it exists.
void erase_value(Node& root, const std::string& path) {
  Node* map = &root;
  std::size_t begin = 0;
  for (std::size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
    if (map->kind != Node::Kind::map) return;
    map = map->find(path.substr(begin, dot - begin));
    if (map == nullptr) return;
  }
  if (map->kind == Node::Kind::map) erase(*map, path.substr(begin));
}

/// Like put_value, but a null is a value like any other.
void set_value(Node& root, const std::string& path, Node value, const Place& place, Problems& problems) {
  if (root.kind == Node::Kind::nothing) root.kind = Node::Kind::map;
  Node* map = &root;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = path.find('.', begin);
    const std::string key = path.substr(begin, dot - begin);
    if (map->kind != Node::Kind::map) {
      problems.add(place, printable(path),
                   show(path.substr(0, begin - 1)) + " is " + describe(*map) +
                       " in the job, not a map: set it as a whole, as in --set '" +
                       printable(path.substr(0, begin - 1)) + "={" + printable(path.substr(begin)) +
                       ": VALUE}'");
      return;
    }
    if (map->find(key) == nullptr) {
      map->entries.push_back({key, place, {}});
      map->entries.back().value.kind = Node::Kind::map;
      map->entries.back().value.place = place;
    }
    map = map->find(key);
    if (dot == std::string::npos) break;
    begin = dot + 1;
  }
  *map = std::move(value);
}

}  // namespace

std::string first_name(const std::string& path) {
  for (const OtherName& other : kOtherNames)
    if (path == std::string(other.section) + "." + other.key) return other.first;
  return path;
}

void use_first_names(Node& root, Problems& problems) { rename(root, &problems); }

void use_given_names(Node& root, Problems& problems) {
  if (root.kind != Node::Kind::map) return;
  for (const OtherName& other : kOtherNames) {
    const Node* value = root.find(other.first);
    if (value == nullptr || !value->other_name) continue;
    Node said = *value;
    erase(root, other.first);
    const Place place = said.place;
    set_value(root, std::string(other.section) + "." + other.key, std::move(said), place, problems);
  }
}

bool is_file_name(const std::string& preset) {
  return preset.find('/') != std::string::npos || preset.ends_with(".yaml");
}

std::string absolute_path(const std::string& path, const std::string& directory) {
  const std::filesystem::path beside = std::filesystem::path(directory) / path;
  std::error_code ignored;
  return std::filesystem::absolute(std::filesystem::exists(beside, ignored) ? beside
                                                                            : std::filesystem::path(path))
      .lexically_normal()
      .string();
}

void anchor_presets(Node& root, const std::string& directory) {
  for (const char* const section : {"model", "cluster"}) {
    Node* const keys = root.kind == Node::Kind::map ? root.find(section) : nullptr;
    Node* const preset = keys != nullptr && keys->kind == Node::Kind::map ? keys->find("preset") : nullptr;
    if (preset == nullptr || preset->kind != Node::Kind::scalar || !is_file_name(preset->text)) continue;
    const std::string path = absolute_path(preset->text, directory);
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) preset->text = path;
  }
}

std::optional<PresetSource> find_preset(const PresetKind& kind, const std::string& name, const Place& place,
                                        Problems& problems) {
  if (is_file_name(name)) {
    std::string wrong;
    if (auto text = read_plain_file(name, wrong)) return PresetSource{name, std::move(*text)};
    problems.add(place, kind.key, wrong);
    return std::nullopt;
  }
  for (const PresetText& preset : kind.texts)
    if (name == preset.name) return PresetSource{kind.folder + name + ".yaml", preset.text};
  std::vector<std::string> names = kind.other_names;
  for (const PresetText& preset : kind.texts) names.emplace_back(preset.name);
  const std::string near = nearest(name, names);
  problems.add(
      place, kind.key,
      "unknown preset " + show(name) +
          (near.empty() ? "; the presets are " + list_words(names) : " (nearest valid: " + near + ")"));
  return std::nullopt;
}

std::optional<std::string> read_plain_file(const std::string& path, std::string& wrong) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    wrong = show(path) + " is not a plain file";
    return std::nullopt;
  }
  try {
    return read_text_file(path);
  } catch (const base::SpecError& e) {
    wrong = e.what();
    return std::nullopt;
  }
}

std::vector<std::string> names_of(std::span<const PresetText> texts) {
  std::vector<std::string> names;
  for (const PresetText& preset : texts) names.emplace_back(preset.name);
  return names;
}

namespace {

PresetKind model_presets() { return {"model.preset", "configs/models/", model_preset_texts()}; }

std::string node_text(const Node& node) {
  std::string text = node.text;
  for (const Node& item : node.items) text += "\n" + node_text(item);
  return text;
}

/// What a preset says, by the keys of a job.
void collect_values(const Node& node, const std::string& path, std::map<std::string, std::string>& values) {
  if (node.kind != Node::Kind::map) values[path] = node_text(node);
  for (const Entry& entry : node.entries) collect_values(entry.value, path + "." + entry.key, values);
}

std::map<std::string, std::string> values_of_model_preset(const std::string& name) {
  std::map<std::string, std::string> values;
  Problems unread;
  const int source = unread.add_source(name, Problems::SourceKind::file);
  const auto found = name.empty() ? std::nullopt : find_preset(model_presets(), name, {source, 1, 1}, unread);
  if (!found) return values;
  try {
    collect_values(parse_document(found->text, source, "model", unread), "model", values);
  } catch (const Stop&) {
    values.clear();
  }
  return values;
}

}  // namespace

std::vector<std::string> keys_that_model_presets_differ_in(const std::string& one, const std::string& other) {
  const auto a = values_of_model_preset(one), b = values_of_model_preset(other);
  std::map<std::string, std::string> all = a;
  all.insert(b.begin(), b.end());
  std::vector<std::string> keys;
  for (const auto& [key, value] : all)
    if (const auto x = a.find(key), y = b.find(key); x == a.end() || y == b.end() || x->second != y->second)
      keys.push_back(key);
  return keys;
}

std::vector<std::string> preset_names_at(const std::string& path) {
  if (path == "model.preset") return names_of(model_preset_texts());
  if (path != "cluster.preset") return {};
  std::vector<std::string> names = names_of(cluster_preset_texts());
  names.emplace_back("local");
  return names;
}

namespace {

/// True if a job has this key or section.
bool is_known(const std::string& path) {
  job::JobSpec job;
  const std::vector<Field> fields = spec::fields_of(job);
  return std::ranges::any_of(
      fields, [&](const Field& f) { return f.path == path || f.path.starts_with(path + "."); });
}

}  // namespace

void apply_override(Node& root, const std::string& argument, Problems& problems) {
  const int source = problems.add_source("--set " + printable(argument, 160), Problems::SourceKind::argument);
  const Place place{source, 1, 1};
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.add(place, "", "expected key.path=value, for example optimizer.lr=1e-3");
    return;
  }
  const std::string path = argument.substr(0, equals);
  if (path.front() == '.' || path.back() == '.' || path.find("..") != std::string::npos)
    return problems.add(place, "", "the key path " + show(path) + " has an empty part");
  Node value;
  try {
    value = parse_document(argument.substr(equals + 1), source, printable(path), problems);
  } catch (const Stop&) {
    return;
  }
  if (value.kind == Node::Kind::nothing) value.place = place;
  if (value.null && !is_known(first_name(path))) value.null = false;  // stays, to be reported
  value.other_name = first_name(path) != path;
  put_value(root, first_name(path), std::move(value), place, problems);
  rename(root, nullptr);  // the value may be a map with the other name
}

void put_value(Node& root, const std::string& path, Node value, const Place& place, Problems& problems) {
  if (value.null) erase_value(root, path);
  else set_value(root, path, std::move(value), place, problems);
}

const Node* find_value(const Node& root, const std::string& path) {
  const Node* node = &root;
  for (std::size_t begin = 0; node != nullptr;) {
    const std::size_t dot = path.find('.', begin);
    node = node->kind == Node::Kind::map ? node->find(path.substr(begin, dot - begin)) : nullptr;
    if (dot == std::string::npos) return node;
    begin = dot + 1;
  }
  return nullptr;
}

std::optional<int> merge_preset(Node& root, Problems& problems) {
  Node* model = root.kind == Node::Kind::map ? root.find("model") : nullptr;
  const Node* name = model != nullptr && model->kind == Node::Kind::map ? model->find("preset") : nullptr;
  if (name == nullptr || name->kind != Node::Kind::scalar || name->text.empty() ||
      problems.bad("model.preset"))
    return std::nullopt;
  const auto found = find_preset(model_presets(), name->text, name->place, problems);
  if (!found) return std::nullopt;
  if (is_file_name(name->text)) erase(*model, "preset");
  const int source = problems.add_source(found->name, Problems::SourceKind::file);
  Node preset;
  try {
    preset = parse_document(found->text, source, "model", problems);
  } catch (const Stop&) {
    return source;
  }
  if (preset.kind != Node::Kind::map) {
    problems.add({source, 1, 1}, "model.preset", "a preset is a map of model keys, got " + describe(preset));
    return source;
  }
  for (Entry& entry : preset.entries) {
    if (entry.key == "preset") {
      problems.add(entry.place, "model.preset", "a preset cannot name another");
    } else {
      put_below(*model, std::move(entry));
    }
  }
  return source;
}

void put_below(Node& map, Entry entry) {
  Node* own = map.find(entry.key);
  if (own == nullptr) {
    map.entries.push_back(std::move(entry));
  } else if (own->kind == Node::Kind::map && entry.value.kind == Node::Kind::map) {
    for (Entry& below : entry.value.entries) put_below(*own, std::move(below));
  }
}

std::string read_text_file(const std::string& path) {
  const base::UniqueFd file = base::open_read(path);
  if (!file) throw base::spec_error("cannot open " + show(path) + ": " + base::errno_text(errno));
  std::string text;
  std::array<char, 1 << 14> block{};
  for (;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw base::spec_error("cannot read " + show(path) + ": " + base::errno_text(errno));
    if (got == 0) return text;
    text.append(block.data(), static_cast<std::size_t>(got));
    if (text.size() > kLongestFile)
      throw base::spec_error(show(path) + " is longer than 1 MiB: not a job or preset");
  }
}

}  // namespace trainerd::core::spec
