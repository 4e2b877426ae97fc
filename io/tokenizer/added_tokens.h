#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

}  // namespace trainerd::io
