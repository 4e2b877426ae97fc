#pragma once

#include <optional>
#include <vector>

#include "io/records/records.h"
#include "io/records/trace.h"
#include "parallel/comm/observed_communicator.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core::train {

/// What a rank's compute stream is at, beside the part of the ledger that its time belongs to. Texts are
/// literals.
struct StreamWork {
  const char* action = nullptr;            ///< of the schedule; null: none
  int chunk = 0, microbatch = 0;           ///< of the action
  std::optional<parallel::CommCall> call;  ///< that a stall issues or awaits
};

/// The name that traces give an action, in simulated and real runs alike.
const char* trace_name(parallel::ActionKind kind);

/// A stretch of a stream's time: its category is the ledger's part, its name the action, the axis and
/// operation, or the part.
io::TraceSlice trace_slice(base::LedgerPart part, const StreamWork& work, double start_seconds,
                           double seconds);

/// A rank's step from `begin` to `end`: its slices in order, and `other` where none is. Process and row are
/// the rank's.
std::vector<io::TraceSlice> filled_trace(std::vector<io::TraceSlice> slices, std::int64_t rank, double begin,
                                         double end);

}  // namespace trainerd::core::train
