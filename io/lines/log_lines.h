#pragma once

#include <functional>
#include <string>
#include <vector>

namespace trainerd::io {

/// Calls `visit` for each line of a log of records, in order, until it returns false. `torn`: the last line
/// has no line end, the last write did not finish. A file that is not there, or a device, has no lines.
/// Throws SpecError when the file cannot be looked at or read (tried again for about 2 s first), and for a
/// symbolic link: what cannot be read is not known to be empty.
void read_log_lines(const std::string& path,
                    const std::function<bool(const std::string& line, bool torn)>& visit);

/// A line of a log that is no record.
struct GarbledLine {
  std::int64_t number = 0;  ///< from 1
  std::string text;
};
/// Appends `lines` to the log's file of lines that were set aside (`path` + ".garbled"), and flushes it. What
/// to say of it. Throws SpecError.
std::string set_aside(const std::string& path, const std::vector<GarbledLine>& lines);

}  // namespace trainerd::io
