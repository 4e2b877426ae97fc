#include "apps/command_line.h"

namespace trainerd::apps {

std::string shell_words(int argc, const char* const* argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i > 0 ? " " : "") + shell_word(argv[i]);
  return line;
}

}  // namespace trainerd::apps
