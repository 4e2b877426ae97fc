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

/// What encoders of one model share. Texts are normalized ones, with ' ' for U+2581.
struct SentencePieceTables {
  /// Throws SentencePieceError.
  explicit SentencePieceTables(const SentencePieceModel& model);

  SentencePieceNormalizer normalizer;
  SentencePieceModel::Algorithm algorithm;
  std::int32_t unknown_id;
  std::vector<std::int32_t> byte_ids;  ///< [256]; empty: unknown characters become unknown_id
  /// No piece has a space behind another character: then a text's tokens are those of its words, each with
  /// the spaces before it.
  bool by_words = true;
  ByteTrie user_defined;  ///< ids of user-defined symbols
  /// A text's characters stay as they are, but for spaces, and no token stands for several unknown ones.
  bool keeps_text = false;
  std::vector<std::int32_t> piece_bytes;  ///< [id] of a normalized text
  AddedTokenFinder template_tokens{{}};   ///< control and user-defined pieces and the unknown one

  // Unigram.
  ByteTrie pieces;            ///< ids, without control, unknown, byte and unused pieces
  std::vector<float> scores;  ///< [id]; that of unknown_id is of each unknown character
  float largest_score = 0;    ///< by magnitude
  std::size_t longest_piece = 0;
  std::vector<bool> in_pieces;  ///< [code point up to the largest]: a piece has it

  // BPE. A symbol is a piece's id, or kCharacter + a code point, or kFrozen + the id of a user-defined
  // symbol, which does not merge.
  static constexpr std::int32_t kCharacter = 1 << 29, kFrozen = 1 << 28;
  ByteTrie characters;  ///< ids of pieces of one character
  std::optional<MergeTable> merges;
};

std::unique_ptr<Encoder> sentencepiece_encoder(const SentencePieceTables& tables);
/// Finds control and user-defined pieces in the text, as transformers does. Of the parts between them only
/// one that begins the text gets the model's space.
std::unique_ptr<Encoder> sentencepiece_template_encoder(const SentencePieceTables& tables);

}  // namespace trainerd::io
