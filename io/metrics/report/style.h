#pragma once

#include <string>

namespace trainerd::io {

/// The page's style sheet, for light and dark: colours of the ledger's parts as the classes s0, f0, b0
/// (stroke, fill, background), ...
std::string page_style();

}  // namespace trainerd::io
