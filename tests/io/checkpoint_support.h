#pragma once

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::test {

/// One shard: its safetensors file in memory and the boxes in it, filled by a function.
struct Shard {
  std::vector<std::byte> bytes;
  std::vector<io::TensorSlice> slices;
  io::ShardContent content() const { return {bytes, slices}; }
};

/// fp32 slices; element `n` (row-major in the logical tensor) of tensor `name` is `value(name, n)`.
template <class Value>
Shard make_shard(std::vector<io::TensorSlice> slices, Value value) {
  std::vector<io::StoredTensor> tensors;
  for (const io::TensorSlice& s : slices)
    tensors.push_back({.name = s.name, .dtype = s.dtype, .shape = s.shape});
  const io::SafetensorsLayout layout = io::lay_out_safetensors(tensors, {});
  Shard shard{.bytes = layout.header, .slices = std::move(slices)};
  shard.bytes.resize(static_cast<std::size_t>(layout.file_bytes));
  for (std::size_t i = 0; i < shard.slices.size(); ++i) {
    const io::TensorSlice& s = shard.slices[i];
    const std::int64_t elements =
        std::accumulate(s.shape.begin(), s.shape.end(), std::int64_t{1}, std::multiplies<>());
    for (std::int64_t e = 0; e < elements; ++e) {
      std::int64_t rest = e, global = 0, stride = 1;
      for (std::size_t d = s.shape.size(); d-- > 0;) {
        global += (s.begin[d] + rest % s.shape[d]) * stride;
        rest /= s.shape[d];
        stride *= s.logical_shape[d];
      }
      const float x = value(s.name, global);
      std::memcpy(shard.bytes.data() + layout.header.size() +
                      static_cast<std::size_t>(layout.tensors[i].begin + 4 * e),
                  &x, 4);
    }
  }
  return shard;
}

inline io::TensorSlice slice(const std::string& name, std::vector<std::int64_t> logical,
                             std::vector<std::int64_t> begin, std::vector<std::int64_t> shape) {
  return {name, kernels::DType::f32, std::move(logical), std::move(begin), std::move(shape)};
}

/// A small shard whose elements all hold the step at which it was saved.
inline Shard stamped_shard(std::int64_t step, std::int64_t rows = 6) {
  return make_shard({slice("w", {rows, 8}, {0, 0}, {rows, 8}), slice("b", {5}, {0}, {5})},
                    [step](const std::string&, std::int64_t) { return static_cast<float>(step); });
}

inline io::TrainingState state_at(std::int64_t step) {
  return {.step = step,
          .cursor = step * 16,
          .tokens = step * 1024,
          .seed = ~0ull - 1,
          .identity = {{"model", "tiny \"x\""}, {"data", "d"}},
          .environment = {{"isa", "avx512"}}};
}

}  // namespace trainerd::test
