#pragma once

#include <string>

namespace trainerd::apps {

/// Writes all of `text` to standard output and flushes it. Throws SpecError if it does not arrive: a full
/// disk behind a redirection must not pass for success.
void print(const std::string& text);
/// Opens descriptors 0 to 2 on /dev/null where they are closed: the first files that are opened would be
/// written to otherwise.
void open_standard_streams();
/// Writes a line to standard error, and does not wait for a reader that takes nothing.
void print_error(const std::string& line);
/// Writes `text` to the file that `option` names. Throws SpecError.
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace trainerd::apps
