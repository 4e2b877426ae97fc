#pragma once

#include <string>

#include "io/text/shell.h"

namespace trainerd::apps {

using io::shell_word;
/// The command line as text that a shell splits into the same words.
std::string shell_words(int argc, const char* const* argv);

}  // namespace trainerd::apps
