#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/lines/log_lines.h"
#include "io/records/records.h"

namespace trainerd::io {

/// How far events.jsonl can be kept.
struct EventLogKept {
  std::string text;                  ///< the lines of events up to the step asked for, and of every notice
  bool all = true;                   ///< that is the whole file
  std::vector<GarbledLine> garbled;  ///< lines that are no events, a torn last one aside
};

/// Calls `visit` for each event of events.jsonl up to step `last_step`, and for notices of any step, in the
/// file's order, which is not that of the steps: a checkpoint's line is written when it is on the disk. A
/// torn last line is left out, and a line that is no event is passed over. A file that is not there has no
/// events. Throws SpecError when it cannot be read.
EventLogKept read_event_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const EventRecord&)>& visit);

}  // namespace trainerd::io
