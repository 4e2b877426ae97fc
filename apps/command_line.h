#pragma once

#include <string>

namespace trainerd::apps {

/// A word that a shell reads back as `word`.
std::string shell_word(const std::string& word);
/// The command line as one that a shell reads back to the same words.
std::string shell_words(int argc, const char* const* argv);

}  // namespace trainerd::apps
