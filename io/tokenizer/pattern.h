#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trainerd::io {

/// A regular expression from a tokenizer file that splits text into pieces. It is written for Oniguruma and
/// matched by PCRE2, so only syntax with the same meaning in both is accepted: alternatives, groups, `(?i:)`,
/// `(?=)`, `(?!)`, repeats, character sets, `\s`, `\d`, `\p{L}` and the other general categories. Immutable.
class Pattern {
 public:
  /// Throws std::invalid_argument naming the unsupported part, or if the pattern matches the empty text.
  explicit Pattern(const std::string& expression);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

 private:
  friend class PatternMatcher;
  struct Code;
  std::unique_ptr<Code> code_;
};

/// Matches one pattern, for one thread. The pattern must outlive it.
class PatternMatcher {
 public:
  explicit PatternMatcher(const Pattern& pattern);
  ~PatternMatcher();
  PatternMatcher(PatternMatcher&&) noexcept;

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  /// Returns the first match at `from` or later; it is never empty. `text` is valid UTF-8 and `from` a
  /// character boundary. Throws EncodeError if PCRE2 exceeds its limits.
  std::optional<Match> next(std::string_view text, std::size_t from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the expression in PCRE2 syntax, for UTF-8 with Unicode properties. Throws std::invalid_argument.
std::string pcre2_expression(const std::string& expression);

/// Returns an expression that matches `text` literally.
std::string literal_expression(std::string_view text);

}  // namespace trainerd::io
