#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/sentencepiece_model.h"

namespace trainerd::io {

/// U+2581, which stands for a space in pieces. Inside the encoder it is ' ', which no normalized text has.
inline constexpr std::string_view kPieceSpace = "\xe2\x96\x81";
/// A piece's text with ' ' for U+2581.
std::string with_spaces(std::string_view piece);

/// A model's precompiled_charsmap: which texts become which, as a double array of darts-clone and the
/// replacements, each ended by a zero byte.
class Charsmap {
 public:
  Charsmap() = default;
  /// Throws SentencePieceError.
  explicit Charsmap(std::string_view bytes);
  struct Rule {
    std::size_t bytes = 0;  ///< of the text that it replaces; 0: there is none
    std::string_view to;
  };
  /// The rule of the longest text that `text` begins with.
  Rule longest(std::string_view text) const;
  /// Whether a rule for this character alone, or a rule that begins with it and another of ASCII, may be
  /// there. [byte of ASCII]
  bool concerns_ascii(unsigned char byte) const { return ascii_[byte]; }

 private:
  // Of a node, which is a unit of the array: where its children begin.
  std::size_t children(std::size_t node) const {
    const std::uint32_t unit = units_[node];
    return node ^ (unit >> 10 << ((unit & 1u << 9) >> 6));
  }
  // The child for `byte`; npos: none.
  std::size_t child(std::size_t node, unsigned char byte) const {
    const std::size_t at = children(node) ^ byte;
    return at < units_.size() && (units_[at] & 0x800000ffu) == byte ? at : std::string_view::npos;
  }
  std::vector<std::uint32_t> units_;
  std::string replacements_;
  std::array<bool, 128> ascii_{};
};

/// Whether a text gets the space that a model puts before a text.
enum class DummyPrefix : std::uint8_t { as_model, none };

/// A text as the model's pieces see it: rules applied, white space as the model has it, ' ' for U+2581.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);
  /// `text` is valid UTF-8. Replaces `out`. Throws EncodeError where a rule cuts a character in two.
  void normalize(std::string_view text, std::string& out, DummyPrefix prefix) const;
  /// The model puts a space before a text.
  bool dummy_prefix() const { return dummy_prefix_; }

 private:
  struct Part {
    std::string_view to;
    std::size_t bytes;  // of the text
  };
  Part first_part(std::string_view text) const;
  void append(std::string_view part, std::string& out) const;

  Charsmap charsmap_;
  ByteTrie user_defined_;
  std::array<bool, 256> plain_{};  // this byte before another of ASCII stays as it is
  bool dummy_prefix_, remove_extra_whitespaces_;
};

}  // namespace trainerd::io
