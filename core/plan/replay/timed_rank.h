#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/replay/replay.h"

namespace trainerd::core::plan {

/// Peers of a pipeline rank's messages. In a ring the last and the first rank are neighbours too.
std::vector<int> neighbours(const parallel::ScheduleShape& shape, int pipeline_rank);

/// An event with its seconds. A run of operators, and of collectives that stop the rank on links without
/// other traffic, is one `pass`. A collective that stops the rank on shared links is a `transfer`.
struct TimedEvent {
  enum class Kind : std::uint8_t { pass, transfer, issue, wait } kind = Kind::pass;
  int group = 0, after = -1;  ///< `after` and `behind` as in RecordedEvent
  std::int64_t behind = 0;
  double seconds = 0;                                 ///< for a `pass`
  base::LedgerPart part = base::LedgerPart::compute;  ///< for a `pass` or `transfer`
  /// Host seconds, and for a `pass` the time from its start to the device's end if the device was waiting for
  /// the host.
  double host = 0, behind_host = 0;
  int collective = -1;  ///< for a `transfer` or `issue`; negative: complete already
  bool met = false;     ///< for a `transfer`: messages of other ranks may share its ports
};
using TimedSegment = std::vector<TimedEvent>;

/// A record with its seconds.
struct TimedRank {
  TimedSegment before, after;
  std::map<rank::ActionKey, TimedSegment> actions;
  std::vector<TransferCost> costs;  ///< by index of the record's collectives
};
TimedRank timed_rank(const ReplayInput& input, int pipeline_rank);

}  // namespace trainerd::core::plan
