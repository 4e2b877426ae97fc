#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/tokenizer/sentencepiece_model.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// What tokenizer_config.json says about the SentencePiece model beside it.
struct SentencePieceConfig {
  std::optional<bool> add_bos = {}, add_eos = {};
  std::optional<std::string> bos = {}, eos = {};  ///< texts of tokens
  std::string tokenizer_class = {};               ///< of transformers
};

/// A SentencePiece model (BPE or unigram): ids are those of SentencePiece 0.2. Control tokens (`<s>`) are
/// never found in text; user-defined ones always are. Without `config` TokenizerInfo::before is the token
/// that begins a text, where the model has one. Null where `bytes` are no such model. Throws
/// SentencePieceError: the model or its configuration is damaged or has a part that is not supported.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& bytes,
                                              const std::optional<SentencePieceConfig>& config = {});

}  // namespace trainerd::io
