#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trainerd::io {

/// A regular expression that cuts text into pieces, as tokenizer files have it: written for Oniguruma,
/// matched by PCRE2. Only what both understand alike is taken: alternatives, groups, `(?i:)`, `(?=)`, `(?!)`,
/// repeats, sets of characters, `\s`, `\d`, `\p{L}` and the other general categories. Not changed after
/// construction.
class Pattern {
 public:
  /// Throws std::invalid_argument saying which part is not taken.
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
  /// The first match at `from` or later; never an empty one. `text` is valid UTF-8 and `from` the beginning
  /// of a character. Throws EncodeError when the library gives up.
  std::optional<Match> next(std::string_view text, std::size_t from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The expression in PCRE2's syntax, to be compiled for UTF-8 with Unicode properties. Throws
/// std::invalid_argument.
std::string pcre2_expression(const std::string& expression);

/// An expression that matches `text` as it is.
std::string literal_expression(std::string_view text);

}  // namespace trainerd::io
