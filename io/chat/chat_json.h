#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat_template.h"

namespace trainerd::io {

/// Brings a text into a tokenizer's normal form.
using NormalForm = std::function<std::string(std::string_view)>;

/// The messages under `field` of a JSON object: `[{"role": "user", "content": "..."}, ...]`, or with `from`
/// (human, gpt, system) and `value`, as ShareGPT has them. Throws JsonError: another shape, tool calls,
/// images.
std::vector<ChatMessage> read_chat(std::string_view line, const std::string& field, const NormalForm& form);

/// Two texts of a JSON object, as one: `completion` is the span. Throws JsonError.
ChatText read_completion(std::string_view line, const std::string& prompt, const std::string& completion,
                         const NormalForm& form);

/// A chosen and a rejected answer to the same prompt, each with the prompt before it as one text; the answer
/// is the span.
struct ChatPair {
  ChatText chosen, rejected;
};
/// The fields "prompt", "chosen" and "rejected" of a JSON object. Throws JsonError.
ChatPair read_pair(std::string_view line, const NormalForm& form);
/// The same of messages: "chosen" and "rejected" are lists of them, which begin with the prompt where there
/// is no field "prompt" of more. What they begin with alike is the prompt. Throws JsonError, and as
/// `render_chat`.
ChatPair read_chat_pair(std::string_view line, ChatTemplate chat, const NormalForm& form,
                        const TemplateTokens& tokens);

}  // namespace trainerd::io
