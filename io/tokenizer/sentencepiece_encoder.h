#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/sentencepiece_model.h"
#include "io/tokenizer/sentencepiece_normalizer.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// Tables shared by the encoders of one model. Texts are normalized and have ' ' for U+2581.
struct SentencePieceTables {
  /// Throws SentencePieceError.
  explicit SentencePieceTables(const SentencePieceModel& model);

  SentencePieceNormalizer normalizer;
  SentencePieceModel::Algorithm algorithm;
  std::int32_t unknown_id;
  std::vector<std::int32_t> byte_ids;  ///< [256]; empty: an unknown character becomes unknown_id
  /// True if no piece has a space after another character. Words can then be encoded one by one, each with
  /// the spaces before it.
  bool by_words = true;
  ByteTrie user_defined;  ///< ids of user-defined symbols
  /// True if normalization changes only spaces and no token stands for several unknown characters.
  bool keeps_text = false;
  std::vector<std::int32_t> piece_bytes;  ///< [id] bytes of normalized text
  AddedTokenFinder template_tokens{{}};   ///< control, user-defined and unknown pieces

  // For unigram models.
  ByteTrie pieces;            ///< without control, unknown, byte and unused pieces
  std::vector<float> scores;  ///< [id]; that of unknown_id applies to each unknown character
  float largest_score = 0;    ///< largest absolute score
  std::size_t longest_piece = 0;

  // For BPE models. A symbol is a piece's id, or kCharacter + a code point, or kFrozen + the id of a
  // user-defined symbol, which does not merge.
  static constexpr std::int32_t kCharacter = 1 << 29, kFrozen = 1 << 28;
  ByteTrie characters;  ///< ids of single-character pieces
  std::optional<MergeTable> merges;
};

std::unique_ptr<Encoder> sentencepiece_encoder(const SentencePieceTables& tables);
/// Finds control and user-defined pieces in the text, as transformers does. Only the part at the beginning of
/// the text gets the model's space prefix.
std::unique_ptr<Encoder> sentencepiece_template_encoder(const SentencePieceTables& tables);

}  // namespace trainerd::io
