#pragma once

#include <string>

#include "io/chat/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// The tokenizer's own tokens that a template writes. Throws SpecError naming `file`, the tokenizer's: it
/// lacks a token that the template writes, or names none that begins or ends a text.
TemplateTokens template_tokens(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& file);

}  // namespace trainerd::io
