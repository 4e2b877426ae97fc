#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// How a conversation is written as one text. Matches `apply_chat_template` of transformers with the template
/// that these models ship, without tools.
enum class ChatTemplate : std::uint8_t {
  chatml,          ///< turns between <|im_start|> and <|im_end|>, nothing else
  qwen2,           ///< chatml; adds a default system message if there is none
  qwen2_5,         ///< the same, with Qwen2.5's default message
  qwen3,           ///< chatml; answers after the last question have their thoughts in <think>, even if empty
  qwen3_instruct,  ///< Qwen3 2507 Instruct: chatml
  llama3,          ///< Llama 3
  llama3_1,        ///< Llama 3.1: always writes a system message, which begins with two dates
  llama2,   ///< Llama 2: [INST] and <<SYS>> as text; each question begins with bos, each answer ends with
            ///< eos
  mistral,  ///< Mistral 7B Instruct v0.3: [INST] and [/INST] are tokens
  gemma,    ///< Gemma and Gemma 2: turns between <start_of_turn> and <end_of_turn>, no system message
  gemma3    ///< Gemma 3: the same, with the system message in the first question
};

/// Returns "chatml, qwen2, ...".
std::string chat_template_names();
/// Returns none if there is no such name.
std::optional<ChatTemplate> chat_template_of(std::string_view name);
std::string_view name_of(ChatTemplate chat);
/// Returns the special tokens that the template writes, without the tokenizer's bos and eos.
std::vector<std::string> special_texts(ChatTemplate chat);
/// Returns true if a text starts with the tokenizer's bos.
bool begins_with_bos(ChatTemplate chat);

/// Returns true if an answer ends with the tokenizer's eos.
bool ends_with_eos(ChatTemplate chat);

/// Texts of the tokenizer's bos and eos, if the template writes them; else empty.
struct TemplateTokens {
  std::string bos, eos;
};

/// `turn_end` is the token that ends the assistant's turn; `assistant_begin` is the text that starts it.
std::string turn_end(ChatTemplate chat, const TemplateTokens& tokens);
std::string assistant_begin(ChatTemplate chat);

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
  std::optional<std::string> reasoning;  ///< thoughts before an answer; only the qwen3 template supports them
};

/// Byte range [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0, end = 0;

  bool operator==(const TextSpan&) const = default;
};

struct ChatText {
  std::string text;
  std::vector<TextSpan> assistant;  ///< the assistant's turns with their end token, in order
};

/// Writes a conversation as text. Throws std::invalid_argument if the template does not support the messages.
ChatText render_chat(ChatTemplate chat, const std::vector<ChatMessage>& messages,
                     const TemplateTokens& tokens);

}  // namespace trainerd::io
