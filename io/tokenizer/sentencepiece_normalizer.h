#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/sentencepiece_model.h"

namespace trainerd::io {

/// U+2581, which stands for a space in pieces. The encoder replaces it by ' ', which no normalized text
/// contains.
inline constexpr std::string_view kPieceSpace = "\xe2\x96\x81";
/// Returns a piece's text with ' ' for U+2581.
std::string with_spaces(std::string_view piece);

/// A model's precompiled_charsmap: replacement rules as a double array of darts-clone, and the replacement
/// texts, each terminated by a zero byte.
class Charsmap {
 public:
  Charsmap() = default;
  /// Throws SentencePieceError.
  explicit Charsmap(std::string_view bytes);
  struct Rule {
    std::size_t bytes = 0;  ///< length of the replaced text; 0: no rule
    std::string_view to;
  };
  /// Returns the rule with the longest text that is a prefix of `text`.
  Rule longest(std::string_view text) const;
  /// Returns true if there may be a rule for this ASCII character alone, or for it followed by another ASCII
  /// character.
  bool concerns_ascii(unsigned char byte) const { return ascii_[byte]; }
  /// Returns true if there may be a rule for a text that begins with this character or a part of it.
  bool concerns(std::string_view character) const;

 private:
  // Returns where a node's children begin. A node is a unit of the array.
  std::size_t children(std::size_t node) const {
    const std::uint32_t unit = units_[node];
    return node ^ (unit >> 10 << ((unit & 1u << 9) >> 6));
  }
  // Returns the child for `byte`; npos if there is none.
  std::size_t child(std::size_t node, unsigned char byte) const {
    const std::size_t at = children(node) ^ byte;
    return at < units_.size() && (units_[at] & 0x800000ffu) == byte ? at : std::string_view::npos;
  }
  std::vector<std::uint32_t> units_;
  std::string replacements_;
  std::array<bool, 128> ascii_{};
};

/// Whether a text gets the space that the model puts before a text.
enum class DummyPrefix : std::uint8_t { as_model, none };

/// Converts a text to the form of the model's pieces: applies its rules, its white space handling, and ' '
/// for U+2581.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);
  /// Replaces `out`. `text` is valid UTF-8. Throws EncodeError if a rule splits a character.
  void normalize(std::string_view text, std::string& out, DummyPrefix prefix) const;
  /// True if the model puts a space before a text.
  bool dummy_prefix() const { return dummy_prefix_; }

 private:
  struct Part {
    std::string_view to;
    std::size_t bytes;  // of the original text
  };
  Part first_part(std::string_view text) const;
  void append(std::string_view part, std::string& out) const;
  std::size_t kept_bytes(std::string_view text) const;

  Charsmap charsmap_;
  ByteTrie user_defined_;
  std::array<bool, 256> plain_{};  // true if this byte stays unchanged before another ASCII byte
  std::array<bool, 256> space_{};  // true if a space before this byte stays unchanged
  std::vector<bool> kept_;         // true if this character of 2 or 3 bytes stays unchanged, by code point
  bool dummy_prefix_, remove_extra_whitespaces_;
};

}  // namespace trainerd::io
