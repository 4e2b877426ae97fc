#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainerd::io {

/// Maps strings to values and finds them as prefixes of a text, shortest first. A node stores its children
/// from its lowest to its highest byte.
class ByteTrie {
 public:
  ByteTrie() : nodes_(1) {}
  /// The strings must be non-empty and distinct, the values not negative.
  explicit ByteTrie(std::vector<std::pair<std::string, std::int32_t>> entries);

  static constexpr std::int32_t kRoot = 0;
  /// Returns the child for `byte`; -1 if no string continues this way.
  std::int32_t step(std::int32_t node, char byte) const {
    const Node& at = nodes_[static_cast<std::size_t>(node)];
    const unsigned place = static_cast<unsigned char>(byte) - unsigned{at.lowest};
    return place < at.count ? children_[at.first + place] : -1;
  }
  /// Returns the value of the string that ends at the node; -1 if none does.
  std::int32_t value(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)].value; }
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    std::size_t bytes = 0;  ///< 0: none
    std::int32_t value = -1;
  };
  Match longest(std::string_view text) const {
    Match best;
    std::int32_t node = kRoot;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = step(node, text[i]);
      if (node < 0) break;
      if (value(node) >= 0) best = {i + 1, value(node)};
    }
    return best;
  }

 private:
  struct Node {
    std::uint32_t first = 0;  // index into children_
    std::int32_t value = -1;
    std::uint16_t count = 0;
    std::uint8_t lowest = 0;
  };
  std::vector<Node> nodes_;
  std::vector<std::int32_t> children_;
};

}  // namespace trainerd::io
