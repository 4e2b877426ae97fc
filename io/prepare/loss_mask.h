#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/chat/chat_template.h"

namespace trainerd::io {

/// Marks the tokens of a text: 1 if any byte of the token lies in a span, else 0. `ends`: per token, the byte
/// at which it ends. An empty token takes the value of the byte that follows it.
void mark_tokens(std::span<const std::size_t> ends, const std::vector<TextSpan>& spans,
                 std::vector<std::uint8_t>& mask);

}  // namespace trainerd::io
