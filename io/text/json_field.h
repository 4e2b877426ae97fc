#pragma once

#include <string>
#include <string_view>

namespace trainerd::io {

/// Returns the text of `field` in a JSON object. Throws JsonError saying what is wrong with the line, also if
/// the field holds chat messages.
std::string json_field(std::string_view line, const std::string& field);

}  // namespace trainerd::io
