#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/hf/elements.h"
#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::hf {

/// A tensor to write, and a function that produces its bytes in pieces, in order.
struct OutTensor {
  std::string name;
  Element element = Element::f32;
  std::vector<std::int64_t> shape;
  using Take = std::function<void(std::span<const std::byte>)>;
  std::function<void(const Take&)> give;
};

/// Maximum bytes of a tensor in memory at once, if it can be read by rows.
inline constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;

/// Returns the name of file `index` of `count`.
using FileName = std::function<std::string(std::size_t index, std::size_t count)>;

/// A written file and its tensors: `count` of them from `first` on.
struct TensorFile {
  io::ShardInfo info;
  std::size_t first = 0, count = 0;
};

/// Writes the tensors in order into new safetensors files of `directory`, each of at most `most_bytes` (a
/// larger tensor gets its own file). Throws CheckpointError.
std::vector<TensorFile> write_tensor_files(const std::string& directory, std::span<const OutTensor> tensors,
                                           std::int64_t most_bytes, const FileName& name);

}  // namespace trainerd::core::hf
