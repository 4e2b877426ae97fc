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

/// A token that is found in the text before anything else is done with it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  ///< found in the normalized text; others in the text as it is
  bool lstrip = false;      ///< takes the white space before it
  bool rstrip = false;      ///< takes the white space behind it
};

/// Finds the longest of a set of texts at the leftmost place.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  struct Match {
    std::size_t begin = 0, end = 0;  ///< with the white space that the token takes; may be empty: no token
    std::size_t behind = 0;          ///< the token's own end
    std::int32_t id = 0;
  };
  /// The first match that begins at `from` or later; white space before `taken` is not taken. White space
  /// that an earlier token took can be a token's own text too: `from` is its `behind`, `taken` its `end`.
  std::optional<Match> next(std::string_view text, std::size_t from, std::size_t taken) const;

  /// All of `text` in order: `token(match)` for each token, `rest(begin, end)` for what is between them.
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

/// The added tokens of a `tokenizer.json`: those found in the text as it is, and those found in the
/// normalized text; each also without the special ones.
struct AddedTokens {
  /// `normal` is what the file's normalizer makes of a text.
  AddedTokens(const std::vector<AddedToken>& tokens,
              const std::function<std::string(std::string_view)>& normal);

  AddedTokenFinder raw{{}}, normalized{{}}, raw_plain{{}}, normalized_plain{{}};
};

}  // namespace trainerd::io
