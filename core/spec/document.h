#pragma once

#include <string>
#include <vector>

#include "core/spec/problems.h"

namespace trainerd::core::spec {

struct Entry;

/// A YAML value and the place where it was written. Supports plain YAML only: no anchors, aliases or tags.
struct Node {
  enum class Kind { nothing, scalar, list, map };
  Kind kind = Kind::nothing;
  Place place;
  bool quoted = false;         ///< a scalar in quotes or as a block: always a text
  bool null = false;           ///< written as `~` or `null`, not just left out
  bool other_name = false;     ///< written under the key's second name (compose.h)
  std::string text;            ///< for a scalar
  std::vector<Node> items;     ///< for a list
  std::vector<Entry> entries;  ///< for a map, in order; keys are distinct

  const Node* find(const std::string& key) const;
  Node* find(const std::string& key);
};

struct Entry {
  std::string key;
  Place place;
  Node value;
};

/// "a map", "a list", "nothing", or the scalar itself: for messages.
std::string describe(const Node& node);

/// Parses one document. Duplicate keys, anchors, aliases and tags become problems and parsing continues. A
/// text that is not one YAML document (or too long, too deep, not UTF-8) becomes a problem and throws Stop.
/// An empty text gives a node of kind nothing. `path` is the dotted path of the document's root.
Node parse_document(const std::string& text, int source, const std::string& path, Problems& problems);

}  // namespace trainerd::core::spec
