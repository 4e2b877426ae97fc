#include "io/tokenizer/byte_trie.h"

#include <algorithm>

namespace trainerd::io {

ByteTrie::ByteTrie(std::vector<std::pair<std::string, std::int32_t>> entries) : nodes_(1) {
  std::sort(entries.begin(), entries.end());
  // Entries [begin, end) share the first `depth` bytes, which lead to `node`.
  struct Range {
    std::size_t begin, end, depth;
    std::int32_t node;
  };
  std::vector<Range> todo{{0, entries.size(), 0, kRoot}};
  while (!todo.empty()) {
    Range range = todo.back();
    todo.pop_back();
    if (range.begin < range.end && entries[range.begin].first.size() == range.depth)
      nodes_[static_cast<std::size_t>(range.node)].value = entries[range.begin++].second;
    if (range.begin == range.end) continue;
    const auto byte_of = [&](std::size_t entry) {
      return static_cast<unsigned char>(entries[entry].first[range.depth]);
    };
    const unsigned lowest = byte_of(range.begin), highest = byte_of(range.end - 1);
    const auto first = static_cast<std::uint32_t>(children_.size());
    children_.resize(children_.size() + highest - lowest + 1, -1);
    Node& node = nodes_[static_cast<std::size_t>(range.node)];
    node.first = first;
    node.lowest = static_cast<std::uint8_t>(lowest);
    node.count = static_cast<std::uint16_t>(highest - lowest + 1);
    for (std::size_t begin = range.begin; begin < range.end;) {
      std::size_t end = begin;
      while (end < range.end && byte_of(end) == byte_of(begin)) ++end;
      const auto child = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      children_[first + byte_of(begin) - lowest] = child;
      todo.push_back({begin, end, range.depth + 1, child});
      begin = end;
    }
  }
}

}  // namespace trainerd::io
