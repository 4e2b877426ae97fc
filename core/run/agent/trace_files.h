#pragma once

#include <map>
#include <string>

#include "core/run/wire/messages.h"
#include "io/records/trace.h"

namespace trainerd::core::run {

/// Joins the ranks' parts of traced steps into files traces/step-00000012.json below `directory`. Each rank
/// is a process of the trace.
class TraceFiles {
 public:
  TraceFiles(std::string directory, std::int64_t ranks, std::string suffix)
      : directory_(std::move(directory)), ranks_(ranks), suffix_(std::move(suffix)) {}
  /// Returns the file's path if this was the last missing part and the file was written; else empty. Throws
  /// DataError.
  std::string add(std::int64_t rank, const StepTrace& part);

 private:
  struct Step {
    io::Trace trace;
    std::int64_t ended = 0;  ///< number of ranks whose last part has arrived
  };
  std::string write(std::int64_t step, io::Trace& trace) const;

  std::string directory_;
  std::int64_t ranks_;
  std::string suffix_;
  std::map<std::int64_t, Step> steps_;
};

}  // namespace trainerd::core::run
