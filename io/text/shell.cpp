#include "io/text/shell.h"

namespace trainerd::io {
namespace {

bool is_plain_word(const std::string& word) {
  return !word.empty() &&
         word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%") ==
             std::string::npos;
}

}  // namespace

std::string shell_word(const std::string& word) {
  if (is_plain_word(word)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace trainerd::io
