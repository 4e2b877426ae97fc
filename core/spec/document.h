#pragma once

#include <string>
#include <vector>

#include "core/spec/problems.h"

namespace trainerd::core::spec {

struct Entry;

/// A YAML value with the place where it was written. Only the plain part of YAML exists here: no anchors,
/// aliases or tags.
struct Node {
  enum class Kind { nothing, scalar, list, map };
  Kind kind = Kind::nothing;
  Place place;
  bool quoted = false;         ///< a scalar written in quotes or as a block: a text, whatever it looks like
  bool null = false;           ///< nothing, written as `~` or `null`: not just left out
  bool other_name = false;     ///< written under the other name of its key (compose.h)
  std::string text;            ///< of a scalar
  std::vector<Node> items;     ///< of a list
  std::vector<Entry> entries;  ///< of a map, in order; keys are distinct

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

/// Parses one document. Duplicate keys, anchors, aliases and tags become problems and parsing goes on; a text
/// that is not one YAML document (or too long, too deep, not UTF-8) becomes a problem and throws Stop. An
/// empty text gives a node of kind nothing. `path` is the dotted path that the document's root stands for.
Node parse_document(const std::string& text, int source, const std::string& path, Problems& problems);

}  // namespace trainerd::core::spec
