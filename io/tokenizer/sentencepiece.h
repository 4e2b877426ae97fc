#pragma once

#include <memory>
#include <string>

#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// A SentencePiece model (BPE, unigram, word or character) by its own library. Control tokens (`<s>`) are
/// never found in text; user-defined ones always are. Null where `bytes` are no such model.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& bytes);

}  // namespace trainerd::io
