#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/lines/log_lines.h"
#include "io/records/records.h"

namespace trainerd::io {

/// How far steps.jsonl can be kept.
struct StepLogPrefix {
  std::int64_t bytes = 0;            ///< of whole lines up to `last_step`
  std::int64_t last_line = 0;        ///< number of the last of them, from 1
  bool newline_missing = false;      ///< the last of them lost its line end
  std::vector<GarbledLine> garbled;  ///< lines that are no records, a torn last one aside
};

/// Calls `visit` for each record of steps.jsonl up to step `last_step`, in order. A torn last line is left
/// out, and a line that is no record is passed over. A file that is not there, or a device, has no lines.
/// Throws SpecError when it cannot be read.
StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit);

}  // namespace trainerd::io
