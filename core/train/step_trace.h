#pragma once

#include <optional>
#include <vector>

#include "io/records/records.h"
#include "io/records/trace.h"
#include "parallel/comm/observed_communicator.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core::train {

/// What a rank's compute stream is working on, in addition to the ledger part. Texts are string literals.
struct StreamWork {
  const char* action = nullptr;            ///< of the schedule; null: none
  int chunk = 0, microbatch = 0;           ///< of the action
  std::optional<parallel::CommCall> call;  ///< operation that is issued or awaited
};

/// The name of an action in traces of simulated and real runs.
const char* trace_name(parallel::ActionKind kind);

/// A slice of a stream's time. Its category is the ledger part; its name is the action, the axis and
/// operation, or the part.
io::TraceSlice trace_slice(base::LedgerPart part, const StreamWork& work, double start_seconds,
                           double seconds);

/// The slices of a rank's step in order, from `begin` to `end`, with `other` in the gaps. Sets process and
/// row to the rank's.
std::vector<io::TraceSlice> filled_trace(std::vector<io::TraceSlice> slices, std::int64_t rank, double begin,
                                         double end);

}  // namespace trainerd::core::train
