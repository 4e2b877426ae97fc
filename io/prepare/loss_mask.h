#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/chat/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// For each of `ids`, the tokens of a text of `text_bytes` in the tokenizer's normal form: 1 where one of its
/// bytes lies in a span, else 0. Throws EncodeError where the tokens do not give the text back byte for byte,
/// so that their places are not known.
void mark_tokens(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::size_t text_bytes,
                 const std::vector<TextSpan>& spans, std::vector<std::uint8_t>& mask);

}  // namespace trainerd::io
