#include "io/prepare/loss_mask.h"

namespace trainerd::io {

void mark_tokens(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::size_t text_bytes,
                 const std::vector<TextSpan>& spans, std::vector<std::uint8_t>& mask) {
  mask.clear();
  auto span = spans.begin();
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t end = begin + tokenizer.decode(ids.subspan(i, 1)).size();
    while (span != spans.end() && span->end <= begin) ++span;
    mask.push_back(span != spans.end() && span->begin < end ? 1 : 0);
    begin = end;
  }
  if (begin != text_bytes)
    throw EncodeError(
        "its tokens have " + std::to_string(begin) + " bytes and the text " + std::to_string(text_bytes) +
        ": this tokenizer changes the text (white space that it takes or adds, characters that it "
        "joins where two parts meet), so that it is not known which tokens count");
}

}  // namespace trainerd::io
