#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizer/added_tokens.h"

namespace trainerd::io {

/// One cut of a text by a regular expression.
struct SplitStep {
  enum class Kind : std::uint8_t {
    isolated,  ///< matches and what is between them are pieces
    kept       ///< matches are pieces, what is between them goes ("Removed" with "invert")
  };
  std::string expression;
  Kind kind = Kind::isolated;
};

/// What a Hugging Face `tokenizer.json` of byte-level BPE says.
struct TokenizerJson {
  std::vector<std::pair<std::string, std::int32_t>> vocab;  ///< by the tokens' texts (see ByteMap)
  std::vector<std::pair<std::string, std::string>> merges;  ///< in the order of their ranks
  bool ignore_merges = false;  ///< a piece that is a token becomes it, whatever the merges say
  std::vector<AddedToken> added;
  bool nfc = false;
  std::vector<SplitStep> splits;
  bool prefix_space = false;                    ///< each piece is made to begin with a space
  std::optional<std::string> byte_level_split;  ///< then it is cut by this expression
  std::vector<std::int32_t> before, after;      ///< ids that the post-processor puts around a text
};

/// Reads such a file's text. Throws JsonError saying what is wrong, or which part of the file this program
/// does not implement.
TokenizerJson parse_tokenizer_json(std::string_view text);

}  // namespace trainerd::io
