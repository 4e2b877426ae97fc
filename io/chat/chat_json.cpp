#include "io/chat/chat_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/text/json.h"

namespace trainerd::io {
namespace {

using nlohmann::json;

std::string keys_of(const json& object) {
  std::string keys;
  int shown = 0;
  for (const auto& [key, value] : object.items()) {
    if (++shown > 8) break;
    keys += (keys.empty() ? "" : ", ") + key;
  }
  return keys.empty() ? "nothing" : keys;
}

json object_of(std::string_view line) {
  json object = parse_json(line);
  if (!object.is_object()) throw JsonError("the line is not an object");
  return object;
}

// Translates ShareGPT's role names.
std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  if (from == "gpt") return "assistant";
  return from;
}

bool is_empty(const json& value) { return value.is_null() || (value.is_array() && value.empty()); }

void refuse_tools(const json& object) {
  if (const auto tools = object.find("tools"); tools != object.end() && !is_empty(*tools))
    throw JsonError("it has \"tools\", which no template here writes: leave such conversations out");
}

ChatMessage message_of(const json& item, const NormalForm& form) {
  if (!item.is_object()) throw JsonError("it is not an object with a role and a content");
  if (const auto tools = item.find("tool_calls"); tools != item.end() && !is_empty(*tools))
    throw JsonError("it has tool_calls, which no template here writes: leave such conversations out");
  if (const auto weight = item.find("weight"); weight != item.end() && !weight->is_null() && *weight != 1)
    throw JsonError("its weight is " + weight->dump() +
                    ", and all that the assistant says counts alike: remove the weight, or leave the "
                    "conversation out");
  const bool shared = item.contains("from") && !item.contains("role");
  const char* content = shared ? "value" : "content";
  if (const auto parts = item.find(content); parts != item.end() && parts->is_array())
    throw JsonError(std::string("its ") + content +
                    " is a list of parts; only text is read: join the parts to one text");
  ChatMessage message;
  message.role = shared ? role_of(string_member(item, "from")) : string_member(item, "role");
  message.content = form(string_member(item, content));
  if (const auto thoughts = item.find("reasoning_content"); thoughts != item.end() && !thoughts->is_null())
    message.reasoning = form(string_member(item, "reasoning_content"));
  return message;
}

const json& field_of(const json& object, const std::string& field, const char* option) {
  const auto found = object.find(field);
  if (found == object.end())
    throw JsonError("no field \"" + field + "\" in this object (it has: " + keys_of(object) +
                    "); name it by " + option);
  return *found;
}

std::string text_of(const json& object, const std::string& field, const char* option) {
  const json& value = field_of(object, field, option);
  if (!value.is_string()) throw JsonError("the field \"" + field + "\" is not a text");
  return value.get<std::string>();
}

std::vector<ChatMessage> messages_of(const json& list, const std::string& field, const NormalForm& form) {
  if (!list.is_array()) throw JsonError("the field \"" + field + "\" is not a list of messages");
  std::vector<ChatMessage> messages;
  for (const json& item : list) {
    try {
      messages.push_back(message_of(item, form));
    } catch (const JsonError& error) {
      throw JsonError("message " + std::to_string(messages.size() + 1) + ": " + error.what());
    }
  }
  return messages;
}

ChatText completed(const std::string& prompt, const std::string& completion) {
  ChatText out{.text = prompt + completion, .assistant = {}};
  if (!completion.empty()) out.assistant.push_back({prompt.size(), out.text.size()});
  return out;
}

/// Returns a member of a pair. The names of the members are fixed.
const json& pair_member(const json& object, const std::string& field) {
  const auto found = object.find(field);
  if (found == object.end())
    throw JsonError("no field \"" + field + "\" in this object (it has: " + keys_of(object) +
                    "): --pairs reads prompt, chosen and rejected; rename the fields");
  return *found;
}

std::string pair_text(const json& object, const std::string& field, const NormalForm& form) {
  const json& value = pair_member(object, field);
  if (value.is_array())
    throw JsonError("the field \"" + field + "\" is a list of messages: name their template by --chat");
  if (!value.is_string()) throw JsonError("the field \"" + field + "\" is not a text");
  return form(value.get<std::string>());
}

constexpr const char* kSameAnswers = "the chosen and the rejected answer are the same: leave the pair out";

bool same(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.content == b.content && a.reasoning == b.reasoning;
}

/// Renders a conversation. Only the assistant turns after the first `prompt` messages count as the answer.
ChatText answered(ChatTemplate chat, const std::vector<ChatMessage>& messages, std::size_t prompt,
                  const TemplateTokens& tokens) {
  ChatText text = render_chat(chat, messages, tokens);
  const auto before = std::count_if(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(prompt),
                                    [](const ChatMessage& m) { return m.role == "assistant"; });
  text.assistant.erase(text.assistant.begin(), text.assistant.begin() + before);
  return text;
}

}  // namespace

std::vector<ChatMessage> read_chat(std::string_view line, const std::string& field, const NormalForm& form) {
  const json object = object_of(line);
  refuse_tools(object);
  return messages_of(field_of(object, field, "--field"), field, form);
}

ChatPair read_pair(std::string_view line, const NormalForm& form) {
  const json object = object_of(line);
  const std::string prompt = pair_text(object, "prompt", form), chosen = pair_text(object, "chosen", form),
                    rejected = pair_text(object, "rejected", form);
  if (chosen == rejected) throw JsonError(kSameAnswers);
  return {completed(prompt, chosen), completed(prompt, rejected)};
}

ChatPair read_chat_pair(std::string_view line, ChatTemplate chat, const NormalForm& form,
                        const TemplateTokens& tokens) {
  const json object = object_of(line);
  refuse_tools(object);
  std::vector<ChatMessage> chosen = messages_of(pair_member(object, "chosen"), "chosen", form),
                           rejected = messages_of(pair_member(object, "rejected"), "rejected", form);
  if (const auto prompt = object.find("prompt"); prompt != object.end() && prompt->is_array()) {
    const std::vector<ChatMessage> before = messages_of(*prompt, "prompt", form);
    const auto has_it = [&](const std::vector<ChatMessage>& answer) {
      return std::mismatch(before.begin(), before.end(), answer.begin(), answer.end(), same).first ==
             before.end();
    };
    if (!before.empty() && (has_it(chosen) || has_it(rejected)))
      throw JsonError("\"chosen\" or \"rejected\" begins with the messages of \"prompt\": give them once");
    for (std::vector<ChatMessage>* answer : {&chosen, &rejected})
      answer->insert(answer->begin(), before.begin(), before.end());
  }
  const auto split = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end(), same);
  if (split.first == chosen.end() && split.second == rejected.end()) throw JsonError(kSameAnswers);
  const auto prompt = static_cast<std::size_t>(split.first - chosen.begin());
  if (prompt == 0)
    throw JsonError("\"chosen\" and \"rejected\" begin with no message alike: there is no prompt");
  const auto is_other = [](auto at, const std::vector<ChatMessage>& all) {
    return at != all.end() && at->role != "assistant";
  };
  if (is_other(split.first, chosen) || is_other(split.second, rejected))
    throw JsonError(
        "message " + std::to_string(prompt + 1) +
        " of \"chosen\" and \"rejected\" differs and is not the assistant's: a pair has one prompt");
  return {answered(chat, chosen, prompt, tokens), answered(chat, rejected, prompt, tokens)};
}

ChatText read_completion(std::string_view line, const std::string& prompt, const std::string& completion,
                         const NormalForm& form) {
  const json object = object_of(line);
  return completed(form(text_of(object, prompt, "--field")),
                   form(text_of(object, completion, "--completion")));
}

}  // namespace trainerd::io
