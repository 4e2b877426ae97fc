#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/data_files.h"

namespace trainerd::io {

/// Reads a file line by line from a given byte.
class LineReader {
 public:
  /// Most bytes of a remote file that are fetched and unread: the current buffer and the next.
  static constexpr std::int64_t kAheadBytes = std::int64_t{3} << 20;

  /// Throws DataError.
  LineReader(const std::string& path, std::int64_t from, const DataFiles& files = {});

  struct Line {
    std::int64_t offset = 0;
    std::string_view text;  ///< without its "\n"; valid until the next call
  };
  /// Returns none at the end of the file. Throws DataError if the file cannot be read or a line has 2 GiB or
  /// more.
  std::optional<Line> next();

 private:
  std::string path_;
  DataFile file_;
  std::int64_t offset_;  // offset in the file of the buffer's first byte
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // bytes of the buffer that are read but not returned yet
  bool at_end_ = false;
};

/// Returns the number (from 1) of the line that begins at `offset`.
std::int64_t line_number(const std::string& path, std::int64_t offset, const DataFiles& files = {});

}  // namespace trainerd::io
