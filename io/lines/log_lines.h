#pragma once

#include <functional>
#include <string>
#include <vector>

namespace trainerd::io {

/// Calls `visit` for each line of a log, in order, until it returns false. `torn`: the last line has no line
/// end because its write did not finish. A missing file or a device has no lines. Throws SpecError if the
/// file cannot be read (after retries of about 2 s) and for a symbolic link, because an unreadable log may
/// not be empty.
void read_log_lines(const std::string& path,
                    const std::function<bool(const std::string& line, bool torn)>& visit);

/// A line of a log that is not a valid record.
struct GarbledLine {
  std::int64_t number = 0;  ///< counted from 1
  std::string text;
};
/// Appends `lines` to the file for invalid lines (`path` + ".garbled") and flushes it. Returns a message
/// about it. Throws SpecError.
std::string set_aside(const std::string& path, const std::vector<GarbledLine>& lines);

}  // namespace trainerd::io
