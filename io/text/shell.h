#pragma once

#include <string>

namespace trainerd::io {

/// Quotes `word` for a POSIX shell.
std::string shell_word(const std::string& word);

}  // namespace trainerd::io
