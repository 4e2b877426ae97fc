#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/tokens/options.h"

namespace trainerd::io {

/// What Megatron's index (`name.idx`) says of the tokens in `name.bin`, which have no header of their own.
struct MegatronIndex {
  std::string path;
  TokenType type = TokenType::automatic;
  std::int64_t data_bytes = 0;  ///< of `name.bin`
};

/// Where the index of a token file lies: `name.idx` beside `name.bin`; empty for another name.
std::string megatron_index_path(const std::string& data_path);

/// Reads an index, all integers little-endian:
///   0  9 bytes  "MMIDIDX\0\0"
///   9  uint64   version, 1
///  17  uint8    type: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16
///  18  uint64   sequences
///  26  uint64   documents
///  34  int32    length of each sequence in tokens, then int64 offset of each in bytes, then documents
/// Empty when there is no such file or it has another magic number. Throws DataError naming it: a type that
/// is not read (ids are uint8, uint16 or int32), another version, a file that is cut short.
std::optional<MegatronIndex> read_megatron_index(const std::string& path);

}  // namespace trainerd::io
