#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/text/json.h"
#include "io/text/utf8.h"
#include "io/tokenizer/byte_level_bpe.h"
#include "kernels/base/error.h"

// A tokenizer.json of any bytes: only a JsonError may come out. What is taken encodes a text, and the ids lie
// in the vocabulary and become a text again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  const std::string file(reinterpret_cast<const char*>(data), size);
  try {
    io::TokenizerJson json = io::parse_tokenizer_json(file);
    io::TokenizerInfo info{.kind = "byte-level BPE", .hash = ""};
    info.vocab = io::vocab_of(json);
    const io::ByteLevelBpe tokenizer(info, std::move(json));
    const std::string text =
        io::invalid_utf8(file) == std::string::npos ? file : "It's 12345  \n <|end|> x\xc3\xa9";
    std::vector<std::int32_t> ids;
    try {
      tokenizer.encoder(io::SpecialText::token)->encode(text, ids);
    } catch (const base::DataError&) {}  // the regular expression gives up
    for (const std::int32_t id : ids)
      if (id < 0 || id >= info.vocab) std::abort();
    tokenizer.decode(ids);
  } catch (const io::JsonError&) {}
  return 0;
}
