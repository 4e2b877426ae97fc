#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/lines/log_lines.h"
#include "io/records/records.h"

namespace trainerd::io {

/// The valid prefix of a log with one line per step.
struct StepLogPrefix {
  std::int64_t bytes = 0;            ///< size of the complete lines up to `last_step`
  std::int64_t last_line = 0;        ///< number of the last of these lines, from 1
  bool newline_missing = false;      ///< the last of these lines has no line end
  std::vector<GarbledLine> garbled;  ///< lines that are not valid records, except a torn last one
};

/// Returns the step of a line. Throws DataError for an invalid line.
using StepOfLine = std::function<std::int64_t(const std::string& line)>;
/// As `read_step_log`, for any log with one line per step. Calls `step_of`, then `visit`, for each line.
StepLogPrefix read_step_lines(const std::string& path, std::int64_t last_step, const StepOfLine& step_of,
                              const std::function<void()>& visit);

/// Calls `visit` for each record of steps.jsonl up to step `last_step`, in order. Skips a torn last line and
/// invalid lines. A missing file or a device has no lines. Throws SpecError if the file cannot be read.
StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit);

}  // namespace trainerd::io
