#pragma once

#include <string>

#include "io/text/shell.h"

namespace trainerd::apps {

using io::shell_word;
/// The command line as one that a shell reads back to the same words.
std::string shell_words(int argc, const char* const* argv);

}  // namespace trainerd::apps
