#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainerd::io {

/// The position of the first byte that is not valid UTF-8 (RFC 3629: no surrogates, no overlong forms,
/// nothing above U+10FFFF, no sequence cut short); npos: all of it is valid.
std::size_t invalid_utf8(std::string_view text);

/// The code point at `at`, which is then moved behind it. The text is valid UTF-8 and longer than `at`.
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

/// With U+FFFD in place of each byte that is not of valid UTF-8.
std::string with_replacements(std::string_view text);

/// Unicode's White_Space.
bool is_white_space(std::uint32_t code_point);

/// Adds a code point.
void append_utf8(std::string& text, std::uint32_t code_point);

}  // namespace trainerd::io
