#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace trainerd::io {

/// Reads a log that another process appends to, from the position of the last read. A last line without its
/// end is left for the next read.
class LogFollower {
 public:
  explicit LogFollower(std::string path) : path_(std::move(path)) {}

  /// Returns true if the file was truncated or replaced since the last read, or is gone after lines were
  /// read. The next `read` then begins at the start.
  bool replaced();
  /// Calls `visit` for each new complete line. A missing file has no lines. Throws SpecError if the file
  /// cannot be read.
  void read(const std::function<void(const std::string& line)>& visit);

 private:
  std::string path_;
  std::int64_t offset_ = 0;  ///< end of the complete lines read so far
  std::string
      tail_;  ///< last bytes before `offset_`, to detect a file that was truncated and has grown again
};

}  // namespace trainerd::io
