#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/normalize.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_json.h"

namespace trainerd::io {

/// Byte-level BPE from a `tokenizer.json`. Added tokens are cut out. The text between them is normalized,
/// split into pieces by regular expressions, and each piece is encoded by merging its bytes.
class ByteLevelBpe final : public Tokenizer {
 public:
  /// Tables that an encoder uses.
  struct Parts {
    MergeTable merges{0};
    std::array<std::int32_t, 256> byte_ids{};
    struct Split {
      Pattern pattern;
      SplitStep::Kind kind;
    };
    std::vector<Split> splits;
    std::optional<Pattern> byte_level_split;
    bool prefix_space = false;
    bool ignore_merges = false;
    std::unordered_map<std::string, std::int32_t> pieces;  ///< token per byte string; only with ignore_merges
    std::optional<NfcNormalizer> nfc;
    std::optional<AddedTokens> added;
    std::vector<std::optional<std::string>> bytes_of_id;
  };

  /// Throws JsonError if a token of a merge is missing, if two tokens have one id, or if a byte has no token.
  ByteLevelBpe(TokenizerInfo info, TokenizerJson json);

  std::unique_ptr<Encoder> encoder(SpecialText specials) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::vector<std::int32_t> text_bytes() const override;
  std::string normal_form(std::string_view text) const override;
  std::optional<std::int32_t> id_of(std::string_view token) const override;

 private:
  Parts parts_;
  std::vector<std::int32_t> special_;
  std::unordered_map<std::string, std::int32_t> ids_;  // by token text
};

}  // namespace trainerd::io
