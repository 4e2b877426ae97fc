#pragma once

#include <string>

#include "io/chat/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// Returns the tokenizer's bos and eos, if the template writes them. Throws SpecError naming `file` (the
/// tokenizer's) if a token of the template is missing, or if the tokenizer names no bos or eos.
TemplateTokens template_tokens(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& file);

}  // namespace trainerd::io
