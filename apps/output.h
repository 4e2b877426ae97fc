#pragma once

#include <string>

namespace trainerd::apps {

/// Writes `text` to standard output and flushes. Throws SpecError if that fails: a full disk behind a
/// redirection must be an error.
void print(const std::string& text);
/// Opens closed descriptors 0 to 2 on /dev/null. Else the first opened files would get these numbers and be
/// written to.
void open_standard_streams();
/// Writes a line to standard error. Does not block on a reader that does not read.
void print_error(const std::string& line);
/// Throws SpecError, as `write_file` would, if the file that `option` names cannot be written: before work
/// whose result it is for. Leaves the file as it is.
void require_writable(const std::string& option, const std::string& path);
/// Writes `text` to the file that `option` names. Throws SpecError.
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace trainerd::apps
