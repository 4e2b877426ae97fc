#include "io/chat/chat_json.h"

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

// ShareGPT's names.
std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  if (from == "gpt") return "assistant";
  return from;
}

bool is_empty(const json& value) { return value.is_null() || (value.is_array() && value.empty()); }

ChatMessage message_of(const json& item, const NormalForm& form) {
  if (!item.is_object()) throw JsonError("it is not an object with a role and a content");
  if (const auto tools = item.find("tool_calls"); tools != item.end() && !is_empty(*tools))
    throw JsonError("it has tool_calls, which no template here writes: leave such conversations out");
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

}  // namespace

std::vector<ChatMessage> read_chat(std::string_view line, const std::string& field, const NormalForm& form) {
  const json object = object_of(line);
  const json& list = field_of(object, field, "--field");
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

ChatText read_completion(std::string_view line, const std::string& prompt, const std::string& completion,
                         const NormalForm& form) {
  const json object = object_of(line);
  ChatText out;
  out.text = form(text_of(object, prompt, "--field"));
  const std::size_t begin = out.text.size();
  out.text += form(text_of(object, completion, "--completion"));
  if (out.text.size() > begin) out.assistant.push_back({begin, out.text.size()});
  return out;
}

}  // namespace trainerd::io
