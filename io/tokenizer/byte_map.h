#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainerd::io {

/// Byte-level BPE writes tokens as text, one character per byte. Bytes that are printable in Latin-1 map to
/// themselves, the others to U+0100 and on, in order (`bytes_to_unicode` in GPT-2's encoder.py).
class ByteMap {
 public:
  ByteMap();
  /// Returns the character of a byte.
  std::uint32_t character(unsigned char byte) const { return characters_[byte]; }
  /// Returns the bytes of a token's text; none if a character maps to no byte.
  std::optional<std::string> bytes_of(std::string_view token) const;

 private:
  std::array<std::uint32_t, 256> characters_{};
  std::array<std::int16_t, 512> bytes_{};  // per character; -1: none
};

}  // namespace trainerd::io
