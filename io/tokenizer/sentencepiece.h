#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/tokenizer/sentencepiece_model.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// Settings of a SentencePiece model from the tokenizer_config.json beside it.
struct SentencePieceConfig {
  std::optional<bool> add_bos = {}, add_eos = {};
  std::optional<std::string> bos = {}, eos = {};  ///< token texts
  std::string tokenizer_class = {};               ///< class name in transformers
};

/// Opens a SentencePiece model (BPE or unigram); ids match SentencePiece 0.2. Control tokens (`<s>`) are
/// never found in text, user-defined ones always are. Without `config` TokenizerInfo::before is the model's
/// bos token, if it has one. Returns null if `bytes` are not such a model. Throws SentencePieceError if the
/// model or its configuration is damaged or unsupported.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& bytes,
                                              const std::optional<SentencePieceConfig>& config = {});

}  // namespace trainerd::io
