#pragma once

#include <memory>
#include <string>

#include "io/runs/status.h"

namespace trainerd::io {

/// A status, and what a reader should know of where it comes from.
struct StatusReading {
  RunStatus status;
  std::string warning = {};   ///< why it is old or not all of it; empty: it is neither
  std::string no_ranks = {};  ///< why nothing is known of the ranks; empty where something is
};

/// Where the status of one run comes from.
class StatusSource {
 public:
  virtual ~StatusSource() = default;
  /// The status now. The first call throws where there is none (CommError, SpecError, DataError); a later one
  /// gives the last status with a warning.
  virtual StatusReading read() = 0;
};

/// Of a run's output directory, or of the address of its metrics ("http://127.0.0.1:9464"). Throws SpecError
/// for what is neither.
std::unique_ptr<StatusSource> open_status_source(const std::string& url_or_directory);

}  // namespace trainerd::io
