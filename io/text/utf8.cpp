#include "io/text/utf8.h"

#include <cstring>

namespace trainerd::io {
namespace {

// Returns the length of the sequence at `at`; 0 if it is invalid. Table 3-7 of the Unicode standard.
std::size_t sequence_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned>(static_cast<unsigned char>(text[i])) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80; };
  const unsigned first = byte(at), second = byte(at + 1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return continues(at + 1) ? 2 : 0;
  if (first >= 0xe0 && first < 0xf0) {
    const unsigned low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
    return second >= low && second <= high && continues(at + 2) ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const unsigned low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
    return second >= low && second <= high && continues(at + 2) && continues(at + 3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::size_t invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (at + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const std::size_t bytes = sequence_bytes(text, at);
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& text, std::uint32_t code_point) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto continuation = [&](unsigned shift) { add(0x80 | ((code_point >> shift) & 0x3f)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
    continuation(0);
  } else if (code_point < 0x10000) {
    add(0xe0 | code_point >> 12);
    continuation(6);
    continuation(0);
  } else {
    add(0xf0 | code_point >> 18);
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

std::string with_replacements(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t bad = invalid_utf8(text);
    out += text.substr(0, bad);
    if (bad == std::string_view::npos) return out;
    append_utf8(out, 0xfffd);
    text.remove_prefix(bad + 1);
  }
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

}  // namespace trainerd::io
