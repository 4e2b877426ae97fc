#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat_template.h"

namespace trainerd::io {

/// Converts a text to a tokenizer's normal form.
using NormalForm = std::function<std::string(std::string_view)>;

/// Reads the messages in `field` of a JSON object: `[{"role": "user", "content": "..."}, ...]`, or in
/// ShareGPT's form with `from` (human, gpt, system) and `value`. Throws JsonError for another shape, tool
/// calls and images.
std::vector<ChatMessage> read_chat(std::string_view line, const std::string& field, const NormalForm& form);

/// Reads two texts of a JSON object and joins them. The completion is the assistant's span. Throws JsonError.
ChatText read_completion(std::string_view line, const std::string& prompt, const std::string& completion,
                         const NormalForm& form);

/// A chosen and a rejected answer to the same prompt. Each text is the prompt followed by the answer, which
/// is the assistant's span.
struct ChatPair {
  ChatText chosen, rejected;
};
/// Reads the fields "prompt", "chosen" and "rejected" of a JSON object. Throws JsonError.
ChatPair read_pair(std::string_view line, const NormalForm& form);
/// Reads a pair of message lists. The lists "chosen" and "rejected" start with the prompt, unless a list
/// "prompt" holds it. The prompt is the longest common beginning. Throws JsonError, and as `render_chat`.
ChatPair read_chat_pair(std::string_view line, ChatTemplate chat, const NormalForm& form,
                        const TemplateTokens& tokens);

}  // namespace trainerd::io
