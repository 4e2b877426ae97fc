#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainerd::io {

/// Returns the position of the first byte that is not valid UTF-8 (RFC 3629: no surrogates, no overlong
/// forms, nothing above U+10FFFF, no truncated sequence); npos if all of it is valid.
std::size_t invalid_utf8(std::string_view text);

/// Returns the code point at `at` and moves `at` behind it. The text must be valid UTF-8 and longer than
/// `at`.
inline std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t first = byte(at);
  if (first < 0x80) return byte(at++);
  const std::size_t begin = at;
  at += first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (first < 0xe0) return (first & 0x1fu) << 6 | (byte(begin + 1) & 0x3fu);
  const std::uint32_t middle = (byte(begin + 1) & 0x3fu) << 6 | (byte(begin + 2) & 0x3fu);
  if (first < 0xf0) return (first & 0xfu) << 12 | middle;
  return (first & 7u) << 18 | middle << 6 | (byte(begin + 3) & 0x3fu);
}

/// Replaces each byte that is not valid UTF-8 by U+FFFD.
std::string with_replacements(std::string_view text);

/// True for characters with Unicode's White_Space property.
bool is_white_space(std::uint32_t code_point);

/// Appends a code point.
void append_utf8(std::string& text, std::uint32_t code_point);

}  // namespace trainerd::io
