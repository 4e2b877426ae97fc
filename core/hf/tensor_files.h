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

/// A tensor to write, and a function that gives its bytes in pieces, in order.
struct OutTensor {
  std::string name;
  Element element = Element::f32;
  std::vector<std::int64_t> shape;
  using Take = std::function<void(std::span<const std::byte>)>;
  std::function<void(const Take&)> give;
};

/// As much of a tensor as is in memory at once, where it can be read by rows.
inline constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;

/// Of file `index` of `count`.
using FileName = std::function<std::string(std::size_t index, std::size_t count)>;

/// One file as it was written, and the tensors in it: `first` and the `count - 1` after it.
struct TensorFile {
  io::ShardInfo info;
  std::size_t first = 0, count = 0;
};

/// Writes the tensors in their order into new safetensors files of `directory`, each of at most `most_bytes`
/// (one larger tensor has a file for itself). Throws CheckpointError.
std::vector<TensorFile> write_tensor_files(const std::string& directory, std::span<const OutTensor> tensors,
                                           std::int64_t most_bytes, const FileName& name);

}  // namespace trainerd::core::hf
