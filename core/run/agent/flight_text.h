#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/run/worker/rank_world.h"
#include "kernels/base/segment.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/group/members.h"

// The last communication of each rank of a node, as text for people who look for a failure's cause.

namespace trainerd::core::run {

/// The recorded operations of one rank.
struct RankFlights {
  std::int64_t rank = 0;
  std::vector<parallel::FlightRecord> records;  ///< oldest first
  char process_state = 0;  ///< letter from /proc: 'T' stopped, 'D' waits for a device, 'X' gone; 0: unknown
};

/// Reads the rings of a node's ranks from shared memory. The processes may have ended.
std::vector<RankFlights> read_flights(const base::Segment& segment, const NodeRanks& here);

/// State letter of a process in /proc; 'X' if it is gone.
char process_state(pid_t pid);

/// First a line for each collective that some ranks wait in, with the ranks that have not entered it. Then a
/// line per rank: the current operation, or the last completed one. `now` is on the records' clock.
std::vector<std::string> flight_text(const std::vector<RankFlights>& ranks, const parallel::Layout& layout,
                                     const parallel::GroupNeeds& needs, double now);

}  // namespace trainerd::core::run
