#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/text/json.h"
#include "io/text/utf8.h"
#include "io/tokenizer/byte_level_bpe.h"
#include "io/tokenizer/piece_bpe.h"
#include "io/tokenizer/sentencepiece.h"
#include "kernels/base/error.h"

namespace {

using namespace trainerd;

// An accepted tokenizer encodes a text to ids in the vocabulary and decodes them.
void use(const io::Tokenizer& tokenizer, const std::string& file) {
  const std::string text =
      io::invalid_utf8(file) == std::string::npos ? file : "It's 12345  \n <|end|> x\xc3\xa9";
  std::vector<std::int32_t> ids;
  try {
    tokenizer.encoder(io::SpecialText::token)->encode(text, ids);
  } catch (const base::DataError&) {   // the regular expression gives up
  } catch (const io::EncodeError&) {}  // the rules of a SentencePiece model are damaged
  for (const std::int32_t id : ids)
    if (id < 0 || id >= tokenizer.info().vocab) std::abort();
  tokenizer.decode(ids);
}

}  // namespace

// A tokenizer.json or a SentencePiece model of any bytes: only a JsonError or a SentencePieceError may be
// thrown.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  try {
    if (!file.starts_with('{')) {
      if (const auto tokenizer = io::open_sentencepiece(file)) use(*tokenizer, file);
      return 0;
    }
    io::TokenizerJson json = io::parse_tokenizer_json(file);
    io::TokenizerInfo info{.kind = "byte-level BPE", .hash = ""};
    info.vocab = io::vocab_of(json);
    if (json.spaces) use(io::PieceBpe(info, std::move(json)), file);
    else use(io::ByteLevelBpe(info, std::move(json)), file);
  } catch (const io::JsonError&) {
  } catch (const io::SentencePieceError&) {}
  return 0;
}
