#pragma once

#include <string>

#include "io/chat/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// The text by which a conversation begins in a template; empty where there is none. Throws SpecError naming
/// `file`, the tokenizer's: it lacks a token that the template writes, or names none that begins a text.
std::string bos_text(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& file);

}  // namespace trainerd::io
