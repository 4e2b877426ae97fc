#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/error.h"

// Converts messages to text and back: one JSON object with a type, between agents and between an agent and
// its workers. Only the sources that encode messages include this.

namespace trainerd::core::run {

/// Invalid UTF-8 becomes replacement characters, because host names, paths and library messages may contain
/// any bytes.
std::string to_message(const nlohmann::json& body);

/// Throws nlohmann::json::exception. In a source file, because the parser takes seconds to compile.
nlohmann::json parse_message(const std::string& text);

/// Throw CommError: both ends are the same binary, so the peer is broken.
[[noreturn]] void unknown_message(const std::string& type);
[[noreturn]] void unreadable_message(const char* why);

/// Returns `decode(object, its type)`. Throws CommError if the text cannot be read, also for an
/// nlohmann::json::exception or a DataError from `decode`.
template <class Decode>
auto from_message(const std::string& text, const Decode& decode) {
  try {
    const nlohmann::json object = parse_message(text);
    return decode(object, object.at("type").get<std::string>());
  } catch (const nlohmann::json::exception& e) {
    unreadable_message(e.what());
  } catch (const base::DataError& e) {  // thrown for a record inside the message
    unreadable_message(e.what());
  }
}

}  // namespace trainerd::core::run
