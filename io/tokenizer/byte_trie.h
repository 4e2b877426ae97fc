#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainerd::io {

/// Strings with values, found as prefixes of a text, shortest first. A node's children lie in a table from
/// its lowest byte to its highest.
class ByteTrie {
 public:
  ByteTrie() : nodes_(1) {}
  /// The strings are not empty and differ; values are not negative.
  explicit ByteTrie(std::vector<std::pair<std::string, std::int32_t>> entries);

  static constexpr std::int32_t kRoot = 0;
  /// The node behind `byte`; -1: no string goes on so.
  std::int32_t step(std::int32_t node, char byte) const {
    const Node& at = nodes_[static_cast<std::size_t>(node)];
    const unsigned place = static_cast<unsigned char>(byte) - unsigned{at.lowest};
    return place < at.count ? children_[at.first + place] : -1;
  }
  /// Of the string that ends at the node; -1: none.
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
    std::uint32_t first = 0;  // in children_
    std::int32_t value = -1;
    std::uint16_t count = 0;
    std::uint8_t lowest = 0;
  };
  std::vector<Node> nodes_;
  std::vector<std::int32_t> children_;
};

}  // namespace trainerd::io
