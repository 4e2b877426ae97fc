#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_json.h"

namespace trainerd::io {

/// BPE of characters by a `tokenizer.json` that was made of a SentencePiece model (Llama 2, Mistral, Gemma):
/// spaces become U+2581, a character that no token has becomes the tokens of its bytes.
class PieceBpe final : public Tokenizer {
 public:
  /// What an encoder needs of it.
  struct Parts {
    MergeTable merges{0};
    std::array<std::int32_t, 256> byte_ids{};
    ByteTrie characters;        ///< ids of tokens of one character
    std::vector<bool> is_byte;  ///< [id]: one of byte_ids
    SpaceRule spaces;
    bool ignore_merges = false;
    std::unordered_map<std::string, std::int32_t> ids;  ///< by the tokens' texts
    std::vector<std::optional<std::string>> texts;      ///< [id]
    /// No merge puts a space behind another character: then tokens are those of words, each with the spaces
    /// before it.
    bool by_words = true;
    std::optional<AddedTokens> added;
  };

  /// Throws JsonError: a token that a merge names is missing, two tokens have one id, the vocabulary lacks
  /// the token of a byte.
  PieceBpe(TokenizerInfo info, TokenizerJson json);

  std::unique_ptr<Encoder> encoder(SpecialText specials) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::vector<std::int32_t> text_bytes() const override;
  std::optional<std::int32_t> id_of(std::string_view token) const override;

 private:
  std::string bytes_of(std::int32_t id) const;

  Parts parts_;
  std::vector<bool> special_, added_;  // [id]
};

}  // namespace trainerd::io
