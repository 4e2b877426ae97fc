#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "io/files/data_files.h"
#include "io/tokens/options.h"

namespace trainerd::io {

/// Contents of a Megatron index (`name.idx`). It describes the tokens in `name.bin`, which has no header.
struct MegatronIndex {
  std::string path;
  TokenType type = TokenType::automatic;
  std::int64_t data_bytes = 0;  ///< size of `name.bin`
  std::int64_t sequences = 0;
  std::int64_t documents = 0;
  DataFiles from = {};  ///< opens the index
};

/// Returns the path of a token file's index: `name.idx` for `name.bin`; empty for another name.
std::string megatron_index_path(const std::string& data_path);

/// Returns `c.bin` for `c`, `c.bin` or `c.idx`, the names that Megatron accepts for one data set. Returns
/// `path` unchanged if there is no such index.
std::string megatron_data_path(const std::string& path, const DataFiles& from = {});

/// Reads an index, all integers little-endian:
///   0  9 bytes  "MMIDIDX\0\0"
///   9  uint64   version, 1
///  17  uint8    type: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16
///  18  uint64   sequences, S
///  26  uint64   documents + 1, D
///  34  int32    length of each sequence in tokens
///      int64    offset of each sequence in bytes
///      int64    first sequence of each document, and S
/// Returns none if there is no such file or if it has another magic number. Throws DataError naming it: a
/// non-integer type, another version, the older format TNTIDX, sequence modes (S more bytes), or a file size
/// other than 34 + 12 S + 8 D bytes.
std::optional<MegatronIndex> read_megatron_index(const std::string& path, const DataFiles& from = {});

/// A document of a data set: tokens [first, first + tokens) of its file.
struct Document {
  std::int64_t first = 0, tokens = 0;
};
/// Calls `visit` for every document, in order. Reads the whole index in blocks: 12 bytes per sequence and 8
/// per document. Throws DataError naming it: sequences that are not contiguous, documents that are out of
/// order, or documents that do not cover all sequences.
void each_document(const MegatronIndex& index, const std::function<void(const Document&)>& visit);

}  // namespace trainerd::io
