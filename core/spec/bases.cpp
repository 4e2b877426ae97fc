#include "core/spec/bases.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <unordered_map>

#include "core/spec/compose.h"
#include "core/spec/expand.h"

namespace trainerd::core::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFiles = 16;  // per chain
constexpr const char* kKey = "extends";
constexpr const char* kExpected = "expected the path of a job file";

/// A file of the chain and its contents.
struct Layer {
  Node root;
  std::string name;
  fs::path directory;
  fs::path real;  // canonical path without links, to recognise a file
};

fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  return error ? fs::path() : real;
}

/// `path` relative to `directory`, normalised if that names the same file.
std::string path_from(const fs::path& directory, const std::string& path) {
  const fs::path joined = directory == "." ? fs::path(path) : directory / path;
  const fs::path shorter = joined.lexically_normal();
  std::error_code error;
  return (fs::equivalent(joined, shorter, error) ? shorter : joined).string();
}

std::string chain_text(const std::vector<Layer>& layers, const std::string& last) {
  std::string text;
  for (const Layer& layer : layers) text += printable(layer.name, 160) + " -> ";
  return text + printable(last, 160);
}

std::optional<Entry> take_extends(Node& root) {
  const auto at = std::find_if(root.entries.begin(), root.entries.end(),
                               [](const Entry& entry) { return entry.key == kKey; });
  if (at == root.entries.end()) return std::nullopt;
  Entry taken = std::move(*at);
  root.entries.erase(at);
  return taken;
}

/// The path in `extends`, with variables replaced. Nothing, with a problem, if there is none.
std::optional<std::string> base_path(Entry extends, const Layer& from, const Environment& environment,
                                     Problems& problems) {
  const Place place = extends.value.place;
  const auto refuse = [&](const std::string& what) {
    problems.add(place, kKey, what);
    return std::nullopt;
  };
  if (problems.bad(kKey, place.source)) return std::nullopt;
  if (extends.value.kind == Node::Kind::nothing) return refuse(std::string("has no value; ") + kExpected);
  if (extends.value.kind != Node::Kind::scalar)
    return refuse(std::string(kExpected) + ", got " + describe(extends.value));
  if (from.directory.empty()) return refuse("is for jobs in files: this text is in no directory");
  Node holder;
  holder.kind = Node::Kind::map;
  holder.entries.push_back(std::move(extends));
  expand_texts(holder, {kKey}, environment, problems);
  if (problems.bad(kKey, place.source)) return std::nullopt;
  std::string path = holder.entries[0].value.text;
  if (path.empty()) return refuse(std::string("is empty; ") + kExpected);
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(path.begin(), path.end(), control))
    return refuse("must not have control characters, got " + show(path));
  return path;
}

/// The file that the last of `layers` extends. Nothing, with a problem, if it cannot be read.
std::optional<Layer> read_base(Entry extends, const std::vector<Layer>& layers,
                               const Environment& environment, Problems& problems) {
  const Place place = extends.value.place;
  const auto path = base_path(std::move(extends), layers.back(), environment, problems);
  if (!path) return std::nullopt;
  const std::string name = path_from(layers.back().directory, *path);
  const std::string chain = chain_text(layers, name);
  Layer base{{}, name, fs::path(name).parent_path(), real_path(name)};
  if (base.directory.empty()) base.directory = ".";
  for (const Layer& layer : layers)
    if (!base.real.empty() && layer.real == base.real)
      return problems.add(place, kKey, "is a cycle: " + chain), std::nullopt;
  if (layers.size() >= kMaxFiles)
    return problems.add(place, kKey,
                        "is a chain of more than " + std::to_string(kMaxFiles) + " files: " + chain),
           std::nullopt;
  std::string wrong;
  const auto text = read_plain_file(name, wrong);
  if (!text) return problems.add(place, kKey, wrong + " (" + chain + ")"), std::nullopt;
  const int source = problems.add_source(name, Problems::SourceKind::base);
  try {
    base.root = parse_document(*text, source, "", problems);
    use_first_names(base.root, problems);
  } catch (const Stop&) {
    return std::nullopt;
  }
  if (base.root.kind != Node::Kind::map)
    return problems.add({source, 1, 1}, "",
                        (base.root.kind == Node::Kind::nothing
                             ? "is empty: a job is a map of keys ("
                             : "a job is a map of keys, got " + describe(base.root) + " (") +
                            chain + ")"),
           std::nullopt;
  return base;
}

class Merger {
 public:
  Merger(bool whole, Problems& problems) : whole_(whole), problems_(problems) {}

  /// Merges the entries of the map `over` over those of the map `below`. Replaced values go to the map
  /// `replaced`. `path` is the path of both.
  void put_over(Node& below, Node over, const std::string& path, Node& replaced) {
    std::unordered_map<std::string, std::size_t> index;
    for (std::size_t i = 0; i < below.entries.size(); ++i) index.emplace(below.entries[i].key, i);
    std::vector<bool> taken(below.entries.size());
    for (Entry& entry : over.entries) {
      const std::string entry_path = (path.empty() ? "" : path + ".") + printable(entry.key);
      const auto found = index.find(entry.key);
      if (found == index.end()) {
        add(below, std::move(entry), entry_path);
      } else if (entry.value.null) {
        replaced.entries.push_back(std::move(below.entries[found->second]));
        taken[found->second] = true;
      } else {
        replace(below.entries[found->second], std::move(entry), entry_path, replaced);
      }
    }
    std::vector<Entry> kept;
    for (std::size_t i = 0; i < below.entries.size(); ++i)
      if (i >= taken.size() || !taken[i]) kept.push_back(std::move(below.entries[i]));
    below.entries = std::move(kept);
  }

 private:
  static Node empty_map(const Place& place) {
    Node map;
    map.kind = Node::Kind::map;
    map.place = place;
    return map;
  }

  void add(Node& below, Entry entry, const std::string& path) {
    if (entry.value.null) {
      // The base value may be in a file that could not be read.
      if (whole_)
        problems_.add(entry.value.place, path,
                      "`~` takes away what a base says, and none says anything: leave it out");
      return;
    }
    Node value = std::move(entry.value);
    if (value.kind == Node::Kind::map) {  // removes `~` values in it
      Node map = empty_map(value.place), none = empty_map(value.place);
      put_over(map, std::move(value), path, none);
      value = std::move(map);
    }
    below.entries.push_back({std::move(entry.key), entry.place, std::move(value)});
  }

  void replace(Entry& below, Entry over, const std::string& path, Node& replaced) {
    Entry out{over.key, below.place, empty_map(below.value.place)};
    if (over.value.kind != Node::Kind::map) {
      out.value = std::move(below.value);
      below.value = std::move(over.value);
    } else {
      const Place place = over.value.place;
      if (below.value.kind != Node::Kind::map) {
        out.value = std::move(below.value);
        below.value = empty_map(place);
      }
      Node none = empty_map(place);
      const bool both = out.value.kind == Node::Kind::map;
      put_over(below.value, std::move(over.value), path, both ? out.value : none);
      below.value.place = place;
    }
    below.place = over.place;
    if (out.value.kind != Node::Kind::map || !out.value.entries.empty())
      replaced.entries.push_back(std::move(out));
  }

  bool whole_;
  Problems& problems_;
};

}  // namespace

Bases merge_bases(Node& root, const JobFile& file, const Environment& environment, Problems& problems) {
  Bases bases;
  if (root.kind != Node::Kind::map || root.find(kKey) == nullptr) return bases;
  std::vector<Layer> layers;
  const fs::path directory = file.directory;
  layers.push_back({std::move(root), file.name, directory,
                    directory.empty() ? fs::path() : real_path(directory / fs::path(file.name).filename())});
  while (auto extends = take_extends(layers.back().root)) {
    auto base = read_base(std::move(*extends), layers, environment, problems);
    bases.whole = base.has_value();
    if (!base) break;
    layers.push_back(std::move(*base));
  }
  root = std::move(layers.back().root);
  Merger merger(bases.whole, problems);
  for (std::size_t i = layers.size() - 1; i-- > 0;) {
    Node& replaced = bases.replaced.emplace_back();
    replaced.kind = Node::Kind::map;
    merger.put_over(root, std::move(layers[i].root), "", replaced);
  }
  return bases;
}

}  // namespace trainerd::core::spec
