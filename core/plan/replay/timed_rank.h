#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/replay/replay.h"

namespace trainerd::core::plan {

/// Ranks that a pipeline rank exchanges messages with: the last one with the first too where ranks hold
/// several chunks.
std::vector<int> neighbours(const parallel::ScheduleShape& shape, int pipeline_rank);

/// An event with its seconds. Runs of operators, and collectives that the rank stops for on links that it has
/// to itself, are one of kind `pass`; on links that others use too each is a `transfer`.
struct TimedEvent {
  enum class Kind : std::uint8_t { pass, transfer, issue, wait } kind = Kind::pass;
  int group = 0;
  std::int64_t behind = 0;
  double seconds = 0;                                 ///< of a `pass`
  base::LedgerPart part = base::LedgerPart::compute;  ///< of a `pass` or `transfer`
  /// The host's own seconds, and of a `pass` from its start to the device's end when the device was waiting
  /// for it.
  double host = 0, behind_host = 0;
  int collective = -1;  ///< of a `transfer` or `issue`; none: over already
  bool met = false;     ///< of a `transfer`: messages of other ranks may come upon it
};
using TimedSegment = std::vector<TimedEvent>;

/// A record with its seconds.
struct TimedRank {
  TimedSegment before, after;
  std::map<rank::ActionKey, TimedSegment> actions;
  std::vector<TransferCost> costs;  ///< of the record's collectives
};
TimedRank timed_rank(const ReplayInput& input, int pipeline_rank);

}  // namespace trainerd::core::plan
