#pragma once

#include <map>
#include <string>

#include "core/run/wire/messages.h"
#include "io/records/trace.h"

namespace trainerd::core::run {

/// Puts the ranks' parts of traced steps together: traces/step-00000012.json below `directory`, every rank a
/// process.
class TraceFiles {
 public:
  TraceFiles(std::string directory, std::int64_t ranks, std::string suffix)
      : directory_(std::move(directory)), ranks_(ranks), suffix_(std::move(suffix)) {}
  /// The path of the file when it was the last part of a step, and was written; else empty. Throws DataError.
  std::string add(std::int64_t rank, const StepTrace& part);

 private:
  struct Step {
    io::Trace trace;
    std::int64_t ended = 0;  ///< ranks whose last part is there
  };
  std::string write(std::int64_t step, io::Trace& trace) const;

  std::string directory_;
  std::int64_t ranks_;
  std::string suffix_;
  std::map<std::int64_t, Step> steps_;
};

}  // namespace trainerd::core::run
