#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// How a conversation is written as one text, as `apply_chat_template` of transformers does by the template
/// that these models come with, without tools.
enum class ChatTemplate : std::uint8_t {
  chatml,          ///< turns between <|im_start|> and <|im_end|>, nothing else
  qwen2,           ///< chatml, with a system message where a conversation begins without one
  qwen2_5,         ///< the same with Qwen2.5's
  qwen3,           ///< chatml; the answers to the last question have their thoughts in <think>, maybe none
  qwen3_instruct,  ///< Qwen3 2507 Instruct: chatml
  llama3,          ///< Llama 3
  llama3_1,        ///< Llama 3.1: the system message is always there and begins with two dates
  llama2,   ///< Llama 2: [INST] and <<SYS>> as text; each question begins a text and each answer ends one
  mistral,  ///< Mistral 7B Instruct v0.3: [INST] and [/INST] are tokens
  mistral_v0_1,  ///< 7B Instruct v0.1 as of 2023: [INST] as text, a space behind each answer, no system
                 ///< message
  mistral_v0_2,  ///< 7B Instruct v0.2 as of 2023: the same without that space
  mistral_v1,    ///< mistral-common's V1, which v0.2 came to have in 2024: spaces before [INST] and answers,
                 ///< and a system message before the first question
  gemma,         ///< Gemma and Gemma 2: turns between <start_of_turn> and <end_of_turn>, no system message
  gemma3         ///< Gemma 3: the same, with the system message before the first question
};

/// "chatml, qwen2, ..."
std::string chat_template_names();
/// None: no such name.
std::optional<ChatTemplate> chat_template_of(std::string_view name);
std::string_view name_of(ChatTemplate chat);
/// The texts of the tokens that it writes, the tokenizer's own begin and end tokens aside.
std::vector<std::string> special_texts(ChatTemplate chat);
/// Whether a text begins with the tokenizer's own begin token.
bool begins_with_bos(ChatTemplate chat);

/// Whether an answer ends by the tokenizer's own end token.
bool ends_with_eos(ChatTemplate chat);

/// The texts of the tokenizer's own tokens, where a template writes them; else empty.
struct TemplateTokens {
  std::string bos, eos;
};

/// The token that ends the assistant's turn, and what its turn begins by.
std::string turn_end(ChatTemplate chat, const TemplateTokens& tokens);
std::string assistant_begin(ChatTemplate chat);

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
  std::optional<std::string> reasoning;  ///< thoughts before an answer; Qwen3's alone have a place for them
};

/// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0, end = 0;

  bool operator==(const TextSpan&) const = default;
};

struct ChatText {
  std::string text;
  std::vector<TextSpan> assistant;  ///< what the assistant says, with the token that ends its turn; in order
};

/// Throws std::invalid_argument saying what of the messages the template has no place for.
ChatText render_chat(ChatTemplate chat, const std::vector<ChatMessage>& messages,
                     const TemplateTokens& tokens);

}  // namespace trainerd::io
