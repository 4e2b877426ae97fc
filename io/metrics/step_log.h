#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "io/records.h"

namespace trainerd::io {

/// How far steps.jsonl can be kept.
struct StepLogPrefix {
  std::int64_t bytes = 0;        ///< of whole lines up to `last_step`
  bool newline_missing = false;  ///< the last of them lost its line end
};

/// Calls `visit` for each line of steps.jsonl up to step `last_step`, in order. A torn last line is left out;
/// a damaged one before it is a DataError naming the line. A file that is not there, or not a regular one,
/// has no lines.
StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit);

}  // namespace trainerd::io
