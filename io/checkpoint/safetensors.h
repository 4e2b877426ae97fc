#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"

namespace trainerd::io {

/// One tensor of a safetensors file. Offsets count from the end of the header.
struct StoredTensor {
  std::string name;
  kernels::DType dtype = kernels::DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The parsed header of a safetensors file: 8 bytes little-endian length, JSON, data.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< sorted by `begin`
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;  ///< offset of the data in the file
  const StoredTensor* find(const std::string& name) const;
};

/// Returns the bytes of a tensor of `shape`. Throws CheckpointError for a negative size or more than 63 bits.
std::int64_t tensor_bytes(kernels::DType dtype, std::span<const std::int64_t> shape);

/// Parses the header of a file of `file_bytes` bytes. `head` holds at least the header; `header_bytes` gives
/// its length from the first 8 bytes. Throws CheckpointError if it is malformed: bad length, bad JSON,
/// unknown dtype, overlapping or missing ranges, or sizes that overflow or disagree with the shape.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, std::int64_t file_bytes);
/// Returns the bytes of length field and JSON, from the first 8 bytes. Throws CheckpointError if impossible
/// for `file_bytes`.
std::int64_t header_bytes(std::span<const std::byte> first8, std::int64_t file_bytes);

/// One tensor of a file from another program, with its dtype as written in the file: "F16", "BOOL", ...
struct ForeignTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct ForeignHeader {
  std::vector<ForeignTensor> tensors;  ///< sorted by `begin`
  std::int64_t data_offset = 0;
};
/// As `parse_safetensors`, for any dtype. Checks the sizes only of dtypes that this program knows.
ForeignHeader parse_foreign_safetensors(std::span<const std::byte> head, std::int64_t file_bytes);

/// The format allows no gaps between tensors. The gaps that alignment needs are stored as uint8 tensors with
/// this name and a number. `parse_safetensors` checks them and leaves them out of `tensors`.
inline constexpr const char* kPaddingPrefix = "__padding__.";

/// The bytes of a file before its data. They are fixed for a run, as names, dtypes and shapes are. Assigns
/// offsets to `tensors` in the given order, each aligned to 64 bytes from the file's start (the header is
/// padded with spaces). With Gaps::none nothing is aligned, for programs that take every tensor for one of
/// the model's. Throws CheckpointError for a duplicate name or a size beyond 63 bits.
struct SafetensorsLayout {
  std::vector<std::byte> header;
  std::vector<StoredTensor> tensors;
  std::int64_t file_bytes = 0;
};
enum class Gaps : std::uint8_t { padded, none };
SafetensorsLayout lay_out_safetensors(std::vector<StoredTensor> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      Gaps gaps = Gaps::padded);

}  // namespace trainerd::io
