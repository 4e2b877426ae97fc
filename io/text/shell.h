#pragma once

#include <string>

namespace trainerd::io {

/// A word that a shell reads back as `word`.
std::string shell_word(const std::string& word);

}  // namespace trainerd::io
