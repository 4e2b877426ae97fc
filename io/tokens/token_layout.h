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

/// Where the tokens of one file lie. All integers in the files are little-endian.
struct TokenLayout {
  enum class Kind : std::uint8_t { text, trainerd, llmc, megatron, headerless };
  Kind kind = Kind::text;
  const char* format = "";  ///< for people: "text", "trainerd uint16", "llm.c GPT-2 (uint16)", ...
  TokenType type = TokenType::uint8;
  std::int64_t token_bytes = 1;  ///< 1, 2, 4 or 8
  std::int64_t data_offset = 0;  ///< a multiple of 4
  std::int64_t tokens = 0;
  std::optional<MegatronIndex> index = {};  ///< that says where its documents lie

  /// Whether files of both have one format.
  bool is_alike(const TokenLayout& other) const { return kind == other.kind && type == other.type; }
};

/// What is known of a file before it is looked at.
struct LayoutRequest {
  DataFormat format = DataFormat::text;
  TokenType dtype = TokenType::automatic;  ///< as the job states it
  std::int64_t vocab = 0;                  ///< 0: unknown
  std::optional<MegatronIndex> index = {};
};

/// As many bytes of a file's start as `detect_layout` looks at.
inline constexpr std::int64_t kLayoutHeadBytes = 1024;

// Our own flat file has 64 bytes before the tokens:
//   0  8 bytes  "\x89TRDTOK\n"
//   8  uint32   version, 1
//  12  uint32   bytes of a token, 2 or 4
//  16  uint64   number of tokens
//  24  zeros

/// Finds the layout of a file of `file_bytes` bytes from its first min(file_bytes, kLayoutHeadBytes) bytes.
///   text:   one token a byte. Refused: a token file, JSON lines (by name), what `foreign_kind` knows, NUL
///   bytes. tokens: by Megatron's index; our own header; llm.c's (256 int32: magic 20240520, version 1,
///   uint16 or magic 20240801,
///           version 7, uint32; the third int is the number of tokens). Without any, as nanoGPT writes it,
///           the type must be stated: text and what `foreign_kind` knows are refused even so, and uint16
///           where the vocabulary needs more.
/// The size must be exactly what header or index say, and the stated type as wide. Throws DataError naming
/// `path`.
TokenLayout detect_layout(std::span<const std::byte> head, std::int64_t file_bytes,
                          const LayoutRequest& request, const std::string& path);

/// Whether a file that starts with `head` has one of the magic numbers of token files.
bool has_token_magic(std::span<const std::byte> head);

/// "uint16".
const char* name_of(TokenType type);

}  // namespace trainerd::io
