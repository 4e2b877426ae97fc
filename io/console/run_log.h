#pragma once

#include <mutex>
#include <string>

#include "io/lines/line_file.h"

namespace trainerd::io {

/// run.log: a run's messages, one per line with the time. Lines wait until the file is open. Any thread may
/// add them.
class RunLog {
 public:
  /// Appends to what earlier attempts left. Throws SpecError.
  void open(const std::string& path);
  /// `level`: "info", "warning", "error". A text of several lines stays together.
  void add(const std::string& level, const std::string& text);
  OutletRecord record() const;
  /// Tries for a few seconds to write what waits.
  void finish();

 private:
  mutable std::mutex mutex_;
  LineFile file_{"run.log"};
};

}  // namespace trainerd::io
