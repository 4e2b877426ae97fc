#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// JSON from outside, read strictly, and JSON as text. Included by sources only, never by a header that
// others see. Parsing and writing are here and nowhere else: where either is used, nlohmann's templates take
// seconds to compile.

namespace trainerd::io {

/// What is wrong with a text; the caller rethrows it as the typed error that names the file.
struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Parses one JSON value. Beyond JSON's own rules it refuses a key given twice in one object (readers differ
/// on which one counts) and nesting deeper than 16. Throws JsonError.
nlohmann::json parse_json(std::string_view text);
/// The same of an object with long lists: each object in a list of the outermost one goes to `take` with the
/// list's key, when it is complete, and is left out of the result. So no list is ever in memory as JSON.
nlohmann::json parse_json(
    std::string_view text,
    const std::function<void(const std::string& list, const nlohmann::json& item)>& take);

// Typed access: throw JsonError naming the key when it is absent or of another type. Integers must fit and be
// integers.
const nlohmann::json& member(const nlohmann::json& object, const char* key);
std::int64_t int_member(const nlohmann::json& object, const char* key);
std::uint64_t uint_member(const nlohmann::json& object, const char* key);
std::string string_member(const nlohmann::json& object, const char* key);
/// Each integer is >= 0.
std::vector<std::int64_t> sizes_member(const nlohmann::json& object, const char* key);
std::map<std::string, std::string> text_map(const nlohmann::json& object, const char* key);

/// As one line, or indented. Text that is not UTF-8 gets replacement characters: names are shown, not
/// restored.
std::string to_text(const nlohmann::ordered_json& value, int indent = -1);
/// As one line, of a value that was parsed.
std::string text_of(const nlohmann::json& value);

}  // namespace trainerd::io
