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

/// Writes a new safetensors file piece by piece: its tensors need not be in memory whole. All throw
/// CheckpointError with the path and the reason.
class TensorFileWriter {
 public:
  /// Makes the file, which must not be there, and writes the header. `layout` is one without gaps.
  TensorFileWriter(std::string path, const SafetensorsLayout& layout);
  /// The next bytes of the tensors, which lie in the file in the layout's order.
  void append(std::span<const std::byte> bytes);
  /// Flushes to the disk. Every byte of the layout has been appended.
  ShardInfo finish();

 private:
  void put(std::span<const std::byte> bytes);

  std::string path_;
  base::UniqueFd fd_;
  std::int64_t bytes_ = 0, expected_;
  Xxh3 hash_;
};

}  // namespace trainerd::io
