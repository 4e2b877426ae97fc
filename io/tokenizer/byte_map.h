#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainerd::io {

/// Byte-level BPE writes tokens as text with one character per byte: bytes that are printable in Latin-1
/// stand for themselves, the others are U+0100 and on, in order (`bytes_to_unicode` of GPT-2's encoder.py).
class ByteMap {
 public:
  ByteMap();
  /// The character of a byte.
  std::uint32_t character(unsigned char byte) const { return characters_[byte]; }
  /// The bytes that a token's text stands for; none when a character of it stands for no byte.
  std::optional<std::string> bytes_of(std::string_view token) const;

 private:
  std::array<std::uint32_t, 256> characters_{};
  std::array<std::int16_t, 512> bytes_{};  // by character; -1: none
};

}  // namespace trainerd::io
