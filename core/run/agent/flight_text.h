#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/run/worker/rank_world.h"
#include "kernels/base/segment.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/group/members.h"

// What the ranks of a node communicated last, for people who look for the cause of a failure.

namespace trainerd::core::run {

/// The recorded operations of one rank.
struct RankFlights {
  std::int64_t rank = 0;
  std::vector<parallel::FlightRecord> records;  ///< oldest first
  char process_state = 0;  ///< as /proc has it: 'T' stopped, 'X' gone, 'D' waits for a device; 0: unknown
};

/// Reads the rings of a node's ranks, whatever became of their processes.
std::vector<RankFlights> read_flights(const base::Segment& segment, const NodeRanks& here);

/// The state of a process, a letter; 'X' for one that is gone.
char process_state(pid_t pid);

/// First which ranks have not entered the collective that others wait in, then a line for each rank: the
/// operation under way, or the last that was done. `now` is that of the records' clock.
std::vector<std::string> flight_text(const std::vector<RankFlights>& ranks, const parallel::Layout& layout,
                                     const parallel::GroupNeeds& needs, double now);

}  // namespace trainerd::core::run
