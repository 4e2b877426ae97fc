#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/options.h"

namespace trainerd::io {

/// Where the tokens of one file lie. All integers in the files are little-endian.
struct TokenLayout {
  const char* format = "";       ///< for people: "text", "trainerd uint16", "llm.c GPT-2 (uint16)", ...
  std::int64_t token_bytes = 1;  ///< 1, 2 or 4
  std::int64_t data_offset = 0;
  std::int64_t tokens = 0;
};

/// As many bytes of a file's start as `detect_layout` looks at.
inline constexpr std::int64_t kLayoutHeadBytes = 1024;

/// Our own flat file, 64 bytes before the tokens:
///   0  8 bytes  "\x89TRDTOK\n"
///   8  uint32   version, 1
///  12  uint32   bytes of a token, 2 or 4
///  16  uint64   number of tokens
///  24  zeros
std::vector<std::byte> token_file_header(std::int64_t token_bytes, std::int64_t tokens);

/// Finds the layout of a file of `file_bytes` bytes from its first min(file_bytes, kLayoutHeadBytes) bytes.
///   text:   one token a byte. A file with a token file's magic number is refused.
///   tokens: our own header; llm.c's (256 int32: magic 20240520, version 1, uint16 or magic 20240801, version
///   7,
///           uint32; the third int is the number of tokens); a file with neither magic number is headerless
///           as nanoGPT writes it: uint16, if the vocabulary fits into 16 bits, else refused.
/// The size must be exactly what the header says. Throws DataError naming `path`.
TokenLayout detect_layout(std::span<const std::byte> head, std::int64_t file_bytes, DataFormat format,
                          std::int64_t vocab, const std::string& path);

/// Whether a file that starts with `head` has one of the magic numbers above.
bool has_token_magic(std::span<const std::byte> head);

}  // namespace trainerd::io
