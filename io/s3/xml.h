#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Minimal XML for the replies of object stores: attributes are ignored, and no element may contain an element
// of the same name.

namespace trainerd::io {

/// Returns the raw content of each element `name`, in order.
std::vector<std::string_view> xml_elements(std::string_view text, std::string_view name);
/// Returns the text of the first element `name` with entities decoded; none if there is no such element.
std::optional<std::string> xml_text(std::string_view text, std::string_view name);
/// Decodes "a%20b" to "a b", for listings with encoding-type=url. "+" is a space too.
std::string url_decoded(std::string_view text);

}  // namespace trainerd::io
