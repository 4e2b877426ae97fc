#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainerd::io {

enum class DataFormat : std::uint8_t { text, tokens, synthetic };
/// Type of the ids in a token file. automatic: as the file's header or the index beside it says.
enum class TokenType : std::uint8_t { automatic, uint8, uint16, int32, uint32 };
/// Bytes of an id; not of `automatic`.
constexpr std::int64_t width_of(TokenType type) {
  return type == TokenType::uint8 ? 1 : type == TokenType::uint16 ? 2 : 4;
}

/// What a resumed run does when its training data is not the checkpoint's.
enum class DataChange : std::uint8_t { refuse, go_on };

struct DataOptions {
  /// Files, directories (every regular file below, in sorted order) or glob patterns.
  std::vector<std::string> train;
  std::vector<std::string> valid;
  DataFormat format = DataFormat::text;
  std::string tokenizer = "bytes";  ///< for `text`: one token a byte
  TokenType dtype = TokenType::automatic;
  DataChange on_change = DataChange::refuse;
  std::int64_t prefetch = 16;  ///< microbatches that each rank reads ahead; 0: none

  bool operator==(const DataOptions&) const = default;
};

}  // namespace trainerd::io
