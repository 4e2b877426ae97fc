#pragma once

#include <mutex>
#include <string>

#include "io/lines/line_file.h"

namespace trainerd::io {

/// run.log: a run's messages, one per line with the time. Lines are kept until the file is open. Thread-safe.
class RunLog {
 public:
  /// Opens the file and appends to what earlier attempts wrote. Throws SpecError.
  void open(const std::string& path);
  /// `level`: "info", "warning", "error". The lines of a multi-line text stay together.
  void add(const std::string& level, const std::string& text);
  OutletRecord record() const;
  /// Tries for a few seconds to write the remaining lines.
  void finish();

 private:
  mutable std::mutex mutex_;
  LineFile file_{"run.log"};
};

}  // namespace trainerd::io
