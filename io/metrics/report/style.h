#pragma once

#include <string>

namespace trainerd::io {

/// Returns the page's style sheet for light and dark mode. The classes s0, f0, b0 (stroke, fill, background),
/// ... are the colours of the ledger's parts.
std::string page_style();

}  // namespace trainerd::io
