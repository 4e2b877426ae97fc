#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/safetensors.h"
#include "io/hash/hash.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// Writes a new safetensors file piece by piece, so tensors need not be in memory as a whole. All functions
/// throw CheckpointError with the path and the reason.
class TensorFileWriter {
 public:
  /// Makes the file, which must not exist, and writes the header. `layout` must have no gaps.
  TensorFileWriter(std::string path, const SafetensorsLayout& layout);
  /// Appends the next bytes of the tensors, which lie in the file in the layout's order.
  void append(std::span<const std::byte> bytes);
  /// Flushes the file to disk. All bytes of the layout must have been appended.
  ShardInfo finish();

 private:
  void put(std::span<const std::byte> bytes);

  std::string path_;
  base::UniqueFd fd_;
  std::int64_t bytes_ = 0, expected_;
  Xxh3 hash_;
};

}  // namespace trainerd::io
