#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"

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

/// How a file that was made of a SentencePiece model treats spaces: each becomes U+2581, and a text may get
/// one more before it.
struct SpaceRule {
  enum class Prefix : std::uint8_t {
    none,
    always,   ///< before each part between added tokens (the normalizer Prepend of Llama 2)
    missing,  ///< before each part that does not begin with a space (Metaspace, "always")
    first     ///< the same where a text begins, but not behind an added token (Metaspace, "first")
  };
  Prefix prefix = Prefix::none;
  bool normalizer = false;          ///< the normalizer does it, so that added tokens can be found behind it
  bool split = false;               ///< each U+2581 begins a piece of its own (Metaspace, "split")
  bool strips_first_space = false;  ///< the decoder takes one space off the beginning
};

/// What a Hugging Face `tokenizer.json` of byte-level BPE says, or of BPE of characters that falls back to
/// bytes, as made of a SentencePiece model.
struct TokenizerJson {
  std::vector<std::pair<std::string, std::int32_t>> vocab;  ///< by the tokens' texts (see ByteMap)
  std::vector<std::pair<std::string, std::string>> merges;  ///< in the order of their ranks
  bool ignore_merges = false;  ///< a piece that is a token becomes it, whatever the merges say
  std::vector<AddedToken> added;
  std::optional<SpaceRule> spaces;  ///< BPE of characters; else byte-level BPE, by what follows
  bool nfc = false;
  std::vector<SplitStep> splits;
  bool prefix_space = false;                    ///< each piece is made to begin with a space
  std::optional<std::string> byte_level_split;  ///< then it is cut by this expression
  std::vector<std::int32_t> before, after;      ///< ids that the post-processor puts around a text
};

/// Throws JsonError, which says that the file is to be fetched again: one that came from elsewhere and is no
/// JSON was cut short, or is a page that says why it is not there.
nlohmann::json parse_fetched_json(std::string_view text);
/// Reads such a file's text. Throws JsonError saying what is wrong, or which part of the file this program
/// does not implement.
TokenizerJson parse_tokenizer_json(std::string_view text);

/// One more than the largest id of a file. Throws JsonError: it is far above all others.
std::int64_t vocab_of(const TokenizerJson& json);
/// The merges, by the ids of the tokens' texts. Throws JsonError: one names a token that is not there.
MergeTable merge_table(const TokenizerJson& json, const std::unordered_map<std::string, std::int32_t>& ids);
/// Adds the file's added tokens to `ids` and their texts to `texts`. The reference library numbers new tokens
/// by itself, from the size of the vocabulary on in the order of the file: throws JsonError where the file
/// says otherwise, because the two would not agree.
void number_added_tokens(const TokenizerJson& json, std::unordered_map<std::string, std::int32_t>& ids,
                         std::vector<std::optional<std::string>>& texts);

}  // namespace trainerd::io
