#pragma once

#include <cstdint>

namespace trainerd::parallel {

/// Contents of one pipeline chunk: layers [first_layer, first_layer + layers), and whether it has the
/// embedding and the head.
struct ChunkSpan {
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  bool embedding = false;
  bool head = false;

  bool operator==(const ChunkSpan&) const = default;
};

}  // namespace trainerd::parallel
