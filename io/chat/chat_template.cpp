#include "io/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "io/text/utf8.h"

namespace trainerd::io {
namespace {

struct Row {
  ChatTemplate chat;
  std::string_view name;
};
constexpr std::array kRows{Row{ChatTemplate::chatml, "chatml"},
                           Row{ChatTemplate::qwen2, "qwen2"},
                           Row{ChatTemplate::qwen2_5, "qwen2.5"},
                           Row{ChatTemplate::qwen3, "qwen3"},
                           Row{ChatTemplate::qwen3_instruct, "qwen3-instruct"},
                           Row{ChatTemplate::llama3, "llama3"},
                           Row{ChatTemplate::llama3_1, "llama3.1"},
                           Row{ChatTemplate::llama2, "llama2"},
                           Row{ChatTemplate::mistral, "mistral"},
                           Row{ChatTemplate::gemma, "gemma"},
                           Row{ChatTemplate::gemma3, "gemma3"}};

constexpr std::string_view kThinkEnd = "</think>", kThink = "<think>";

bool is_llama3(ChatTemplate chat) { return chat == ChatTemplate::llama3 || chat == ChatTemplate::llama3_1; }
bool is_gemma(ChatTemplate chat) { return chat == ChatTemplate::gemma || chat == ChatTemplate::gemma3; }
bool alternates(ChatTemplate chat) {
  return is_gemma(chat) || chat == ChatTemplate::llama2 || chat == ChatTemplate::mistral;
}

std::string_view strip_left(std::string_view text, char c) {
  while (text.starts_with(c)) text.remove_prefix(1);
  return text;
}
std::string_view strip_right(std::string_view text, char c) {
  while (text.ends_with(c)) text.remove_suffix(1);
  return text;
}

// Characters that Python's str.strip() removes: Unicode's white space and four ASCII separators.
bool is_stripped(std::uint32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view strip(std::string_view text) {
  std::size_t begin = 0;
  for (std::size_t next = 0; begin < text.size(); begin = next)
    if (!is_stripped(next_code_point(text, next))) break;
  text.remove_prefix(begin);
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xc0u) == 0x80) --last;
    std::size_t at = last;
    if (!is_stripped(next_code_point(text, at))) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

class Writer {
 public:
  void add(std::string_view text) { out_.text += text; }
  void add_assistant(std::string_view text) {
    out_.assistant.push_back({out_.text.size(), out_.text.size() + text.size()});
    out_.text += text;
  }
  ChatText take() { return std::move(out_); }

 private:
  ChatText out_;
};

void add_chatml(Writer& out, const std::string& role, const std::string& content) {
  out.add("<|im_start|>" + role + "\n");
  if (role == "assistant") out.add_assistant(content + "<|im_end|>");
  else out.add(content + "<|im_end|>");
  out.add("\n");
}

void add_llama(Writer& out, const ChatMessage& message) {
  const std::string content = std::string(strip(message.content)) + "<|eot_id|>";
  out.add("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n");
  if (message.role == "assistant") out.add_assistant(content);
  else out.add(content);
}

struct Answer {
  std::string thoughts, content;
};

// Thoughts are in `reasoning`, or in the content before "</think>".
Answer answer_of(const ChatMessage& message) {
  if (message.reasoning) return {*message.reasoning, message.content};
  const std::string_view all = message.content;
  const std::size_t first = all.find(kThinkEnd);
  if (first == std::string_view::npos) return {"", message.content};
  std::string_view thoughts = strip_right(all.substr(0, first), '\n');
  if (const std::size_t begin = thoughts.rfind(kThink); begin != std::string_view::npos)
    thoughts.remove_prefix(begin + kThink.size());
  const std::string_view content = all.substr(all.rfind(kThinkEnd) + kThinkEnd.size());
  return {std::string(strip_left(thoughts, '\n')), std::string(strip_left(content, '\n'))};
}

// Returns the last user message that is not a tool's response written as a user message.
std::size_t last_question(const std::vector<ChatMessage>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    if (messages[i].role == "user" &&
        !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>")))
      return i;
  }
  return messages.size() - 1;
}

void add_qwen3(Writer& out, const std::vector<ChatMessage>& messages) {
  const std::size_t question = last_question(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "assistant") {
      add_chatml(out, message.role, message.content);
      continue;
    }
    const Answer answer = answer_of(message);
    const bool thinks = i > question && (i + 1 == messages.size() || !answer.thoughts.empty());
    if (!thinks) {
      add_chatml(out, message.role, answer.content);
      continue;
    }
    const std::string_view thoughts = strip_left(strip_right(answer.thoughts, '\n'), '\n');
    add_chatml(out, message.role,
               std::string(kThink) + "\n" + std::string(thoughts) + "\n" + std::string(kThinkEnd) + "\n\n" +
                   std::string(strip_left(answer.content, '\n')));
  }
}

// Writes templates in which questions and answers alternate. A system message at the beginning becomes part
// of a question.
void add_alternating(Writer& out, ChatTemplate chat, const std::vector<ChatMessage>& messages,
                     const TemplateTokens& tokens) {
  const bool has_system = messages.front().role == "system";
  const std::string system = has_system ? messages.front().content : "";
  const std::size_t first = has_system ? 1 : 0;
  if (chat != ChatTemplate::llama2) out.add(tokens.bos);
  for (std::size_t i = first; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    const std::string stripped(strip(content));
    const bool asks = messages[i].role == "user", opens = has_system && i == first,
               closes = has_system && i + 1 == messages.size();
    if (is_gemma(chat)) {
      out.add(asks ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
      if (asks) out.add((opens ? system + "\n\n" : "") + stripped + "<end_of_turn>");
      else out.add_assistant(stripped + "<end_of_turn>");
      out.add("\n");
    } else if (chat == ChatTemplate::mistral) {
      if (asks) out.add("[INST] " + (closes ? system + "\n\n" : "") + content + "[/INST]");
      else out.add_assistant(" " + stripped + tokens.eos);
    } else {
      const std::string question = opens ? "<<SYS>>\n" + system + "\n<</SYS>>\n\n" + content : content;
      if (asks) out.add(tokens.bos + "[INST] " + std::string(strip(question)) + " [/INST]");
      else out.add_assistant(" " + stripped + " " + tokens.eos);
    }
  }
}

void check_alternating(ChatTemplate chat, const std::vector<ChatMessage>& messages) {
  const std::string name(name_of(chat));
  const bool has_system = messages.front().role == "system";
  if (has_system && chat == ChatTemplate::gemma)
    throw std::invalid_argument("the template " + name +
                                " has no place for a system message: put its text into the first question");
  // Mistral's template writes it into the last message, and only if that is a question.
  if (has_system && chat == ChatTemplate::mistral && messages.back().role != "user")
    throw std::invalid_argument("the template " + name +
                                " leaves the system message out where the last message is an answer: put its "
                                "text into the first question");
  const std::size_t first = has_system ? 1 : 0;
  if (messages.size() == first) throw std::invalid_argument("the conversation has a system message alone");
  for (std::size_t i = first; i < messages.size(); ++i)
    if (const char* role = (i - first) % 2 == 0 ? "user" : "assistant"; messages[i].role != role)
      throw std::invalid_argument("message " + std::to_string(i + 1) + " is of the " + messages[i].role +
                                  ": in the template " + name +
                                  " user and assistant take turns, and the user begins; join messages of the "
                                  "same role, or leave the conversation out");
}

void check_messages(ChatTemplate chat, const std::vector<ChatMessage>& messages) {
  if (messages.empty()) throw std::invalid_argument("the conversation has no messages");
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
      throw std::invalid_argument("the role \"" + message.role +
                                  "\" is none of system, user and assistant; tools are not read");
    if (message.reasoning && (chat != ChatTemplate::qwen3 || message.role != "assistant"))
      throw std::invalid_argument("the template " + std::string(name_of(chat)) +
                                  " has no place for reasoning_content in a message of the " + message.role);
  }
  if (alternates(chat)) check_alternating(chat, messages);
}

}  // namespace

std::string chat_template_names() {
  std::string names;
  for (const Row& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

std::optional<ChatTemplate> chat_template_of(std::string_view name) {
  const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  return row == kRows.end() ? std::nullopt : std::optional(row->chat);
}

std::string_view name_of(ChatTemplate chat) {
  return std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.chat == chat; })->name;
}

std::vector<std::string> special_texts(ChatTemplate chat) {
  if (is_llama3(chat)) return {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  if (chat == ChatTemplate::llama2) return {};
  if (chat == ChatTemplate::mistral) return {"[INST]", "[/INST]"};
  if (is_gemma(chat)) return {"<start_of_turn>", "<end_of_turn>"};
  return {"<|im_start|>", "<|im_end|>"};
}

std::string turn_end(ChatTemplate chat, const TemplateTokens& tokens) {
  if (ends_with_eos(chat)) return tokens.eos;
  return is_gemma(chat) ? "<end_of_turn>" : is_llama3(chat) ? "<|eot_id|>" : "<|im_end|>";
}

std::string assistant_begin(ChatTemplate chat) {
  if (ends_with_eos(chat)) return "";  // the answer follows [/INST], the end of the question
  if (is_gemma(chat)) return "<start_of_turn>model\n";
  return is_llama3(chat) ? "<|start_header_id|>assistant<|end_header_id|>\n\n" : "<|im_start|>assistant\n";
}

bool begins_with_bos(ChatTemplate chat) { return is_llama3(chat) || alternates(chat); }
bool ends_with_eos(ChatTemplate chat) {
  return chat == ChatTemplate::llama2 || chat == ChatTemplate::mistral;
}

ChatText render_chat(ChatTemplate chat, const std::vector<ChatMessage>& messages,
                     const TemplateTokens& tokens) {
  check_messages(chat, messages);
  Writer out;
  const bool system_first = messages.front().role == "system";
  if (alternates(chat)) {
    add_alternating(out, chat, messages, tokens);
    return out.take();
  }
  if (is_llama3(chat)) out.add(tokens.bos);
  std::size_t first = 0;
  if (chat == ChatTemplate::llama3_1) {
    const std::string system = system_first ? messages.front().content : "";
    out.add(
        "<|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n" +
        std::string(strip(system)) + "<|eot_id|>");
    first = system_first ? 1 : 0;
  }
  if (chat == ChatTemplate::qwen2 && !system_first) add_chatml(out, "system", "You are a helpful assistant.");
  if (chat == ChatTemplate::qwen2_5 && !system_first)
    add_chatml(out, "system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  if (chat == ChatTemplate::qwen3) {
    add_qwen3(out, messages);
    return out.take();
  }
  for (std::size_t i = first; i < messages.size(); ++i) {
    if (is_llama3(chat)) add_llama(out, messages[i]);
    else add_chatml(out, messages[i].role, messages[i].content);
  }
  return out.take();
}

}  // namespace trainerd::io
