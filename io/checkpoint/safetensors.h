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
  /// Written in place of the dtype's own word, for a dtype of this size that only other programs have: "F16".
  std::string word = {};
};

/// The parsed header of a safetensors file: 8 bytes little-endian length, JSON, data.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in rising order of `begin`
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;  ///< where data begins in the file
  const StoredTensor* find(const std::string& name) const;
};

/// Bytes of a tensor of `shape`. Throws CheckpointError for a negative size or more than 63 bits.
std::int64_t tensor_bytes(kernels::DType dtype, std::span<const std::int64_t> shape);

/// Parses the header of a file of `file_bytes` bytes from its first bytes (`head` holds at least the header;
/// use `header_bytes` on the first 8 to know how many). Throws CheckpointError on anything malformed: bad
/// length, bad JSON, unknown dtype, overlapping or missing ranges, sizes that overflow or disagree with the
/// shape.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, std::int64_t file_bytes);
/// Total bytes of length field and JSON, from the first 8 bytes. Throws CheckpointError if absurd for
/// `file_bytes`.
std::int64_t header_bytes(std::span<const std::byte> first8, std::int64_t file_bytes);

/// One tensor of a file that another program wrote. Its dtype is spelled as in the file: "F16", "BOOL", ...
struct ForeignTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct ForeignHeader {
  std::vector<ForeignTensor> tensors;  ///< in rising order of `begin`
  std::int64_t data_offset = 0;
};
/// As `parse_safetensors`, of any dtype. The sizes of dtypes that this program knows are checked.
ForeignHeader parse_foreign_safetensors(std::span<const std::byte> head, std::int64_t file_bytes);

/// The format allows no hole between tensors, so the gaps that alignment needs are uint8 tensors of this name
/// and a number. `parse_safetensors` checks them and leaves them out of `tensors`.
inline constexpr const char* kPaddingPrefix = "__padding__.";

/// A file's bytes before the data: fixed for a run, since names, dtypes and shapes are. `tensors` get their
/// offsets here, in the order given, each aligned to 64 bytes relative to the file's start (the header is
/// padded with spaces); or without gaps, for programs that take every tensor for one of the model's. Throws
/// CheckpointError for a name given twice or a size beyond 63 bits.
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
