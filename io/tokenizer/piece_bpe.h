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

/// Character BPE from a `tokenizer.json` that was converted from a SentencePiece model (Llama 2, Mistral,
/// Gemma). Spaces become U+2581. A character without a token becomes byte tokens.
class PieceBpe final : public Tokenizer {
 public:
  /// Tables that an encoder uses.
  struct Parts {
    MergeTable merges{0};
    std::array<std::int32_t, 256> byte_ids{};
    ByteTrie characters;        ///< ids of single-character tokens
    std::vector<bool> is_byte;  ///< [id]: one of byte_ids
    SpaceRule spaces;
    bool ignore_merges = false;
    std::unordered_map<std::string, std::int32_t> ids;  ///< by token text
    std::vector<std::optional<std::string>> texts;      ///< [id]
    /// True if no merge puts a space after another character. Words can then be encoded one by one, each with
    /// the spaces before it.
    bool by_words = true;
    std::optional<AddedTokens> added;
  };

  /// Throws JsonError if a token of a merge is missing, if two tokens have one id, or if a byte has no token.
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
