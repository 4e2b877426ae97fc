#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/lines/log_lines.h"
#include "io/records/records.h"

namespace trainerd::io {

/// How far a log of one line per step can be kept.
struct StepLogPrefix {
  std::int64_t bytes = 0;            ///< of whole lines up to `last_step`
  std::int64_t last_line = 0;        ///< number of the last of them, from 1
  bool newline_missing = false;      ///< the last of them lost its line end
  std::vector<GarbledLine> garbled;  ///< lines that are no records, a torn last one aside
};

/// The step of a line of such a log. Throws DataError for what is no such line.
using StepOfLine = std::function<std::int64_t(const std::string& line)>;
/// Calls `visit` after `step_of` for each line of a log of one line per step, as `read_step_log` does.
StepLogPrefix read_step_lines(const std::string& path, std::int64_t last_step, const StepOfLine& step_of,
                              const std::function<void()>& visit);

/// Calls `visit` for each record of steps.jsonl up to step `last_step`, in order. A torn last line is left
/// out, and a line that is no record is passed over. A file that is not there, or a device, has no lines.
/// Throws SpecError when it cannot be read.
StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit);

}  // namespace trainerd::io
