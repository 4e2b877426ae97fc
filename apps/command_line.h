#pragma once

#include <string>

namespace trainerd::apps {

/// The command line as one that a shell reads back to the same words.
std::string shell_words(int argc, const char* const* argv);

}  // namespace trainerd::apps
