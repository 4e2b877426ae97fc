#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/megatron_index.h"
#include "io/tokens/options.h"

namespace trainerd::io {

/// Position and type of the tokens in one file. All integers in the files are little-endian.
struct TokenLayout {
  enum class Kind : std::uint8_t { text, trainerd, llmc, megatron, headerless };
  Kind kind = Kind::text;
  const char* format = "";  ///< for display: "text", "trainerd uint16", "llm.c GPT-2 (uint16)", ...
  TokenType type = TokenType::uint8;
  std::int64_t token_bytes = 1;  ///< 1, 2, 4 or 8
  std::int64_t data_offset = 0;  ///< a multiple of 4
  std::int64_t tokens = 0;
  std::optional<MegatronIndex> index = {};  ///< gives the positions of its documents

  /// Returns true if both files have the same format.
  bool is_alike(const TokenLayout& other) const { return kind == other.kind && type == other.type; }
};

/// What is known about a file before its first bytes are read.
struct LayoutRequest {
  DataFormat format = DataFormat::text;
  TokenType dtype = TokenType::automatic;  ///< as stated in the job
  std::int64_t vocab = 0;                  ///< 0: unknown
  std::optional<MegatronIndex> index = {};
};

/// Number of bytes at a file's start that `detect_layout` examines.
inline constexpr std::int64_t kLayoutHeadBytes = 1024;

// Our own flat file has a header of 64 bytes:
//   0  8 bytes  "\x89TRDTOK\n"
//   8  uint32   version, 1
//  12  uint32   bytes per token, 2 or 4
//  16  uint64   number of tokens
//  24  zeros

/// Detects the layout of a file of `file_bytes` bytes from its first min(file_bytes, kLayoutHeadBytes) bytes.
///
/// Text has one token per byte. Refused are token files, JSON lines (by name), the types of `foreign_kind`
/// and NUL bytes. Token files have Megatron's index, our own header or llm.c's header (256 int32: magic
/// 20240520, version 1, uint16; or magic 20240801, version 7, uint32; the third int32 is the number of
/// tokens). Without these (nanoGPT) the job must state the type. Even then text (unless uint8 is stated), the
/// types of `foreign_kind`, and uint16 with a vocabulary above 65,536 are refused. The file size must match
/// header or index, and a stated type must have their width. Throws DataError naming `path`.
TokenLayout detect_layout(std::span<const std::byte> head, std::int64_t file_bytes,
                          const LayoutRequest& request, const std::string& path);

/// Returns true if a file that starts with `head` has the magic number of a token file.
bool has_token_magic(std::span<const std::byte> head);

/// Returns the type's name, as "uint16".
const char* name_of(TokenType type);

}  // namespace trainerd::io
