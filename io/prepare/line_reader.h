#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/data_files.h"

namespace trainerd::io {

/// Reads a file line by line from some byte on.
class LineReader {
 public:
  /// Of a remote file that are fetched and not read yet, at most: what is read now and what comes behind it.
  static constexpr std::int64_t kAheadBytes = std::int64_t{3} << 20;

  /// Throws DataError.
  LineReader(const std::string& path, std::int64_t from, const DataFiles& files = {});

  struct Line {
    std::int64_t offset = 0;
    std::string_view text;  ///< without its "\n"; good until the next call
  };
  /// None at the end of the file. Throws DataError: the file cannot be read, a line has 2 GiB or more.
  std::optional<Line> next();

 private:
  std::string path_;
  DataFile file_;
  std::int64_t offset_;  // of the buffer's first byte in the file
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // bytes of the buffer that were read and not given
  bool at_end_ = false;
};

/// The number of a line that begins at `offset`, from 1 on.
std::int64_t line_number(const std::string& path, std::int64_t offset, const DataFiles& files = {});

}  // namespace trainerd::io
