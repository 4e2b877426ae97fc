#include "io/text/json.h"

#include <limits>
#include <set>

#include "io/text/utf8.h"

namespace trainerd::io {
namespace {

constexpr int kMaxDepth = 16;

JsonError wrong_type(const char* key, const char* expected) {
  return JsonError("\"" + std::string(key) + "\" is not " + expected);
}

std::int64_t as_int(const nlohmann::json& value, const char* key) {
  if (!value.is_number_integer()) throw wrong_type(key, "an integer");
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    throw wrong_type(key, "an integer of 63 bits");
  return value.get<std::int64_t>();
}

}  // namespace

nlohmann::json parse_json(std::string_view text) { return parse_json(text, nullptr); }

nlohmann::json parse_json(
    std::string_view text,
    const std::function<void(const std::string& list, const nlohmann::json& item)>& take) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // per open object
  std::string outermost;                    // latest key of the outermost object
  bool in_list = false;                     // inside a list of the outermost object
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > kMaxDepth) throw JsonError("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw JsonError("the key \"" + parsed.get<std::string>() + "\" is given twice");
    if (event == Event::key && depth == 1) outermost = parsed.get<std::string>();
    if (event == Event::array_start && depth == 1) in_list = true;
    if (event == Event::array_end && depth == 1) in_list = false;
    if (!take || event != Event::object_end || depth != 2 || !in_list) return true;
    take(outermost, parsed);
    return false;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& e) {
    // Removes the library's prefix, as in "[json.exception.parse_error.101] parse error at ...".
    const std::string what = e.what();
    const std::size_t end = what.find("] ");
    // The message contains the last bytes read, which may be invalid UTF-8.
    throw JsonError("not valid JSON: " +
                    with_replacements(end == std::string::npos ? what : what.substr(end + 2)));
  }
}

const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) throw JsonError("not an object where \"" + std::string(key) + "\" was expected");
  const auto found = object.find(key);
  if (found == object.end()) throw JsonError("\"" + std::string(key) + "\" is missing");
  return *found;
}

std::int64_t int_member(const nlohmann::json& object, const char* key) {
  return as_int(member(object, key), key);
}

std::uint64_t uint_member(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_number_unsigned()) throw wrong_type(key, "an unsigned integer");
  return value.get<std::uint64_t>();
}

std::string string_member(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_string()) throw wrong_type(key, "a text");
  return value.get<std::string>();
}

std::vector<std::int64_t> sizes_member(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_array()) throw wrong_type(key, "a list");
  std::vector<std::int64_t> sizes;
  for (const nlohmann::json& item : value) {
    sizes.push_back(as_int(item, key));
    if (sizes.back() < 0) throw wrong_type(key, "a list of sizes: one is negative");
  }
  return sizes;
}

std::map<std::string, std::string> text_map(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_object()) throw wrong_type(key, "an object");
  std::map<std::string, std::string> map;
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) throw wrong_type(key, "an object of texts");
    map.emplace(name, text.get<std::string>());
  }
  return map;
}

std::string to_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string text_of(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trainerd::io
