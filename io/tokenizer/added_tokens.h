#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// A token that is searched in the text before any other step.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  ///< searched in the normalized text; others in the original text
  bool lstrip = false;      ///< absorbs the white space before it
  bool rstrip = false;      ///< absorbs the white space behind it
};

/// Finds the leftmost occurrence of a set of texts; at the same position the longest.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  struct Match {
    std::size_t begin = 0, end = 0;  ///< includes the absorbed white space; an empty range is no token
    std::size_t behind = 0;          ///< end of the token's own text
    std::int32_t id = 0;
  };
  /// Returns the first match that begins at `from` or later. It absorbs no white space before `taken`. White
  /// space that an earlier token absorbed can itself be a token, so `from` is that token's `behind` and
  /// `taken` its `end`.
  std::optional<Match> next(std::string_view text, std::size_t from, std::size_t taken) const;

  /// Visits all of `text` in order: `token(match)` for each token, `rest(begin, end)` for the text between
  /// tokens.
  template <class Token, class Rest>
  void cut(std::string_view text, const Token& token, const Rest& rest) const {
    std::size_t done = 0, from = 0;
    while (!empty()) {
      const auto match = next(text, from, done);
      if (!match) break;
      if (match->begin > done) rest(done, match->begin);
      if (match->begin < match->end) token(*match);
      done = match->end;
      from = match->behind;
    }
    if (done < text.size()) rest(done, text.size());
  }

 private:
  struct Node {
    std::int32_t token = -1;                                   // index of the token that ends here
    std::vector<std::pair<unsigned char, std::int32_t>> next;  // sorted by byte
  };
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

/// The added tokens of a `tokenizer.json`: those searched in the original text, those searched in the
/// normalized text, and the non-special ones of each.
struct AddedTokens {
  /// `normal` is the file's normalizer.
  AddedTokens(const std::vector<AddedToken>& tokens,
              const std::function<std::string(std::string_view)>& normal);

  AddedTokenFinder raw{{}}, normalized{{}}, raw_plain{{}}, normalized_plain{{}};
};

}  // namespace trainerd::io
