#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace trainerd::io {

/// Reads a log of lines that another process appends to, from where it was read last. A last line without its
/// end is left for the next time.
class LogFollower {
 public:
  explicit LogFollower(std::string path) : path_(std::move(path)) {}

  /// Whether what was read before is not there any more: the file was cut back or replaced. Then the next
  /// `read` begins at its start. A file that is gone, after lines were read, is one that was replaced.
  bool replaced();
  /// Calls `visit` for each new line that is complete. A file that is not there has none. Throws SpecError
  /// when it cannot be read.
  void read(const std::function<void(const std::string& line)>& visit);

 private:
  std::string path_;
  std::int64_t offset_ = 0;  ///< of what was read, whole lines
  std::string tail_;         ///< the last bytes before it: a file that was cut and has grown again has others
};

}  // namespace trainerd::io
