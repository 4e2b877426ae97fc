#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Strict parsing of JSON from outside, and output of JSON. Include it in source files only. All parsing and
// output code is here, because nlohmann's templates take seconds to compile in each file that uses them.

namespace trainerd::io {

/// Says what is wrong with a text. The caller rethrows it as the typed error that names the file.
struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Parses one JSON value. Also refuses a key that occurs twice in an object (readers differ on which one
/// counts) and nesting deeper than 16. Throws JsonError.
nlohmann::json parse_json(std::string_view text);
/// The same for an object with long lists. Each object in a list of the outermost object is passed to `take`
/// with the list's key and is left out of the result, so no list is kept in memory as JSON.
nlohmann::json parse_json(
    std::string_view text,
    const std::function<void(const std::string& list, const nlohmann::json& item)>& take);

// Typed access. Each throws JsonError naming the key if it is absent, has another type, or is an integer that
// does not fit.
const nlohmann::json& member(const nlohmann::json& object, const char* key);
std::int64_t int_member(const nlohmann::json& object, const char* key);
std::uint64_t uint_member(const nlohmann::json& object, const char* key);
std::string string_member(const nlohmann::json& object, const char* key);
/// Every integer must be >= 0.
std::vector<std::int64_t> sizes_member(const nlohmann::json& object, const char* key);
std::map<std::string, std::string> text_map(const nlohmann::json& object, const char* key);

/// Writes one line, or indented text. Invalid UTF-8 becomes replacement characters: such names are displayed,
/// not read back.
std::string to_text(const nlohmann::ordered_json& value, int indent = -1);
/// Writes a parsed value as one line.
std::string text_of(const nlohmann::json& value);

}  // namespace trainerd::io
