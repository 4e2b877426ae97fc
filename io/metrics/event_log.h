#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/lines/log_lines.h"
#include "io/records/records.h"

namespace trainerd::io {

/// The part of events.jsonl that a resumed run keeps.
struct EventLogKept {
  std::string text;                  ///< lines of events up to the given step, and of all notices
  bool all = true;                   ///< true if that is the whole file
  std::vector<GarbledLine> garbled;  ///< lines that are not valid events, except a torn last one
};

/// Calls `visit` for each event of events.jsonl up to step `last_step`, and for notices of any step, in file
/// order. The steps may be out of order, because a checkpoint's line is written when the checkpoint is on
/// disk. Skips a torn last line and invalid lines. A missing file has no events. Throws SpecError if the file
/// cannot be read.
EventLogKept read_event_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const EventRecord&)>& visit);

}  // namespace trainerd::io
