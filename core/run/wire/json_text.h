#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/error.h"

// How a message becomes text and is read back: one JSON object with its type, between agents as between an
// agent and its workers. Included by the sources that know the messages only.

namespace trainerd::core::run {

/// Text from outside in it (host names, paths, library messages) need not be UTF-8: it gets replacement
/// characters.
std::string to_message(const nlohmann::json& body);

/// Throws nlohmann::json::exception. Not in the header, as the parser takes seconds to compile.
nlohmann::json parse_message(const std::string& text);

/// Throw CommError: the other end is the same binary, so it is a broken peer.
[[noreturn]] void unknown_message(const std::string& type);
[[noreturn]] void unreadable_message(const char* why);

/// What `decode(object, its type)` makes of the text. Throws CommError when it cannot be read, which an
/// nlohmann::json::exception or a DataError of `decode` says too.
template <class Decode>
auto from_message(const std::string& text, const Decode& decode) {
  try {
    const nlohmann::json object = parse_message(text);
    return decode(object, object.at("type").get<std::string>());
  } catch (const nlohmann::json::exception& e) {
    unreadable_message(e.what());
  } catch (const base::DataError& e) {  // of a record inside
    unreadable_message(e.what());
  }
}

}  // namespace trainerd::core::run
