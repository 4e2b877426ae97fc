#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The little XML that an object store replies with: elements without attributes that matter, no element
// inside one of the same name.

namespace trainerd::io {

/// What is inside each element `name` of `text`, in order, as it is there.
std::vector<std::string_view> xml_elements(std::string_view text, std::string_view name);
/// The text of the first element `name`, entities decoded; none: there is none.
std::optional<std::string> xml_text(std::string_view text, std::string_view name);
/// "a%20b" -> "a b", as a listing with encoding-type=url has its keys ("+" is a space there).
std::string url_decoded(std::string_view text);

}  // namespace trainerd::io
