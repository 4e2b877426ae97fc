#pragma once

#include <memory>
#include <string>

#include "io/runs/status.h"

namespace trainerd::io {

/// A status, with remarks about its source.
struct StatusReading {
  RunStatus status;
  std::string warning = {};   ///< why it is old or incomplete; empty: it is neither
  std::string no_ranks = {};  ///< why the ranks are unknown; empty if they are known
};

/// Source of the status of one run.
class StatusSource {
 public:
  virtual ~StatusSource() = default;
  /// Returns the current status. The first call throws if there is none (CommError, SpecError, DataError). A
  /// later call then returns the last status with a warning.
  virtual StatusReading read() = 0;
};

/// Opens a run's output directory, or the address of its metrics ("http://127.0.0.1:9464"). Throws SpecError
/// for anything else.
std::unique_ptr<StatusSource> open_status_source(const std::string& url_or_directory);

}  // namespace trainerd::io
