#pragma once

#include <string>

namespace trainerd::apps {

/// Writes all of `text` to standard output and flushes it. Throws if it does not arrive: a full disk behind a
/// redirection must not pass for success.
void print(const std::string& text);
/// Writes `text` to the file that `option` names. Throws SpecError.
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace trainerd::apps
