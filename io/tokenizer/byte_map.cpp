#include "io/tokenizer/byte_map.h"

#include "io/text/utf8.h"

namespace trainerd::io {

ByteMap::ByteMap() {
  bytes_.fill(-1);
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
    const std::uint32_t character = printable ? byte : next++;
    characters_[byte] = character;
    bytes_[character] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::string> ByteMap::bytes_of(std::string_view token) const {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const std::uint32_t character = next_code_point(token, at);
    if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_[character]);
  }
  return bytes;
}

}  // namespace trainerd::io
