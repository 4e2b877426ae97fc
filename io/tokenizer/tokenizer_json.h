#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"

namespace trainerd::io {

/// One step that splits a text by a regular expression.
struct SplitStep {
  enum class Kind : std::uint8_t {
    isolated,  ///< matches and the text between them are pieces
    kept       ///< matches are pieces, the text between them is dropped ("Removed" with "invert")
  };
  std::string expression;
  Kind kind = Kind::isolated;
};

/// How a file that was converted from a SentencePiece model treats spaces. Each becomes U+2581, and a prefix
/// may be added.
struct SpaceRule {
  enum class Prefix : std::uint8_t {
    none,
    always,   ///< before each part between added tokens (the normalizer Prepend of Llama 2)
    missing,  ///< before each part that does not begin with a space (Metaspace, "always")
    first     ///< the same, only at the text's beginning, not behind an added token (Metaspace, "first")
  };
  Prefix prefix = Prefix::none;
  bool normalizer = false;          ///< done by the normalizer, so added tokens can be searched afterwards
  bool strips_first_space = false;  ///< the decoder removes one space at the beginning
};

/// Contents of a Hugging Face `tokenizer.json` of byte-level BPE, or of character BPE with byte fallback
/// (converted from SentencePiece).
struct TokenizerJson {
  std::vector<std::pair<std::string, std::int32_t>> vocab;  ///< by token text (see ByteMap)
  std::vector<std::pair<std::string, std::string>> merges;  ///< by rank
  bool ignore_merges = false;  ///< a piece that is a token becomes that token without merging
  std::vector<AddedToken> added;
  std::optional<SpaceRule> spaces;  ///< set for character BPE; the fields below are for byte-level BPE
  bool nfc = false;
  std::vector<SplitStep> splits;
  bool prefix_space = false;                    ///< a space is added to a piece that begins without one
  std::optional<std::string> byte_level_split;  ///< expression that then splits the pieces
  std::vector<std::int32_t> before, after;      ///< ids that the post-processor adds around a text
};

/// Reads the text of such a file. Throws JsonError saying what is wrong or which part is unsupported.
TokenizerJson parse_tokenizer_json(std::string_view text);

/// Returns the largest id of a file plus one. Throws JsonError for an id of 2^22 or more.
std::int64_t vocab_of(const TokenizerJson& json);
/// Returns the merges by token ids. Throws JsonError if a merge names an unknown token.
MergeTable merge_table(const TokenizerJson& json, const std::unordered_map<std::string, std::int32_t>& ids);
/// Adds the file's added tokens to `ids` and their texts to `texts`. The reference library ignores the ids of
/// new tokens in the file and numbers them from the size of the vocabulary on, in file order. Throws
/// JsonError if the file's ids differ from that.
void number_added_tokens(const TokenizerJson& json, std::unordered_map<std::string, std::int32_t>& ids,
                         std::vector<std::optional<std::string>>& texts);

}  // namespace trainerd::io
