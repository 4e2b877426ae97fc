#include "io/tokenizer/normalize.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "io/text/utf8.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// All code points that decompose, compose or are reordered lie in [kFirst, kEnd).
constexpr std::uint32_t kFirst = 0xa0, kEnd = 0x30000;

// Combining marks added in Unicode 10 to 15, and the second half of U+11938 (Unicode 13.0).
// tests/io/tokenizers/make.py compares them with the reference.
struct MarkRange {
  std::uint32_t first, last;
};
constexpr std::array kLaterMarks{
    MarkRange{0x7fd, 0x7fd},     MarkRange{0x898, 0x89f},     MarkRange{0x8ca, 0x8d3},
    MarkRange{0x9fe, 0x9fe},     MarkRange{0xc3c, 0xc3c},     MarkRange{0xd3b, 0xd3c},
    MarkRange{0xeba, 0xeba},     MarkRange{0xece, 0xece},     MarkRange{0x1715, 0x1715},
    MarkRange{0x1abf, 0x1ace},   MarkRange{0x1df6, 0x1dfa},   MarkRange{0xa82c, 0xa82c},
    MarkRange{0x10d24, 0x10d27}, MarkRange{0x10eab, 0x10eac}, MarkRange{0x10efd, 0x10eff},
    MarkRange{0x10f46, 0x10f50}, MarkRange{0x10f82, 0x10f85}, MarkRange{0x11070, 0x11070},
    MarkRange{0x1133b, 0x1133b}, MarkRange{0x1145e, 0x1145e}, MarkRange{0x11839, 0x1183a},
    MarkRange{0x11930, 0x11930}, MarkRange{0x1193d, 0x1193e}, MarkRange{0x11943, 0x11943},
    MarkRange{0x119e0, 0x119e0}, MarkRange{0x11a34, 0x11a34}, MarkRange{0x11a47, 0x11a47},
    MarkRange{0x11a99, 0x11a99}, MarkRange{0x11d42, 0x11d42}, MarkRange{0x11d44, 0x11d45},
    MarkRange{0x11d97, 0x11d97}, MarkRange{0x11f41, 0x11f42}, MarkRange{0x16ff0, 0x16ff1},
    MarkRange{0x1e08f, 0x1e08f}, MarkRange{0x1e130, 0x1e136}, MarkRange{0x1e2ae, 0x1e2ae},
    MarkRange{0x1e2ec, 0x1e2ef}, MarkRange{0x1e4ec, 0x1e4ef}};

struct Free {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

void append_normal_form(std::string_view text, std::string& out) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
      &bytes, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(bytes);
  base::check(size >= 0, "valid UTF-8 has a normal form");
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

}  // namespace

// `check` marks code points that differ from their normal form, that are reordered, or that occur in a
// decomposition after its first code point and so may compose with preceding text. This is a superset.
NfcNormalizer::NfcNormalizer() : quick_(kEnd, Quick::starter) {
  for (std::uint32_t c = kFirst; c < kEnd; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0)
      quick_[c] = Quick::check;
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts.data(), static_cast<utf8proc_ssize_t>(parts.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    if (count == 1 && static_cast<std::uint32_t>(parts[0]) == c) continue;
    base::check(count > 0 && static_cast<std::size_t>(count) <= parts.size(), "a decomposition is short");
    for (std::size_t i = 1; i < static_cast<std::size_t>(count); ++i)
      quick_[static_cast<std::size_t>(parts[i])] = Quick::check;
    std::string self, normal;
    append_utf8(self, c);
    append_normal_form(self, normal);
    if (normal != self) quick_[c] = Quick::check;
  }
  for (const auto [first, last] : kLaterMarks)
    for (std::uint32_t c = first; c <= last; ++c) quick_[c] = Quick::opaque;
}

NfcNormalizer::Quick NfcNormalizer::quick(std::uint32_t code_point) const {
  return code_point < kEnd ? quick_[code_point] : Quick::starter;
}

// Splits the text before starters, which preceding text does not change, and around opaque marks. Normalizes
// only pieces that contain a `check` code point.
bool NfcNormalizer::normalize(std::string_view text, std::string& out) const {
  std::size_t copied = 0;  // bytes of the text already copied to `out`
  std::size_t piece = 0;   // start of the current piece
  bool suspicious = false, changed = false;
  const auto end_piece = [&](std::size_t end) {
    if (!suspicious) return;
    if (!changed) out.clear();
    changed = true;
    out.append(text.substr(copied, piece - copied));
    append_normal_form(text.substr(piece, end - piece), out);
    copied = end;
    suspicious = false;
  };
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      end_piece(at);
      piece = at++;
      continue;
    }
    const std::size_t begin = at;
    switch (quick(next_code_point(text, at))) {
      case Quick::starter:
        end_piece(begin);
        piece = begin;
        break;
      case Quick::opaque:
        end_piece(begin);
        piece = at;
        break;
      case Quick::check: suspicious = true; break;
    }
  }
  end_piece(text.size());
  if (!changed) return false;
  out.append(text.substr(copied));
  return true;
}

}  // namespace trainerd::io
