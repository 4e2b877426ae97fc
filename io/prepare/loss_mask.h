#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/chat/chat_template.h"

namespace trainerd::io {

/// For each token of a text, by the byte at which its part ends: 1 where a byte of it lies in a span, else 0.
/// A token of no bytes goes by the byte behind it.
void mark_tokens(std::span<const std::size_t> ends, const std::vector<TextSpan>& spans,
                 std::vector<std::uint8_t>& mask);

}  // namespace trainerd::io
