#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/options.h"

namespace trainerd::parallel {

enum class Pass : std::uint8_t { train, evaluate };

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;          ///< pipeline ranks
  int virtual_stages = 1;  ///< chunks on each rank; more than one with `interleaved` alone
  int microbatches = 1;
  Pass pass = Pass::train;
  /// Receives are posted before other computations, which then run beside them; else right before their use,
  /// for ranks that await each transfer where it is posted.
  bool early_receives = true;

  int chunks() const { return stages * virtual_stages; }
  /// The last rank hands on to the first.
  bool ring() const { return stages > 1 && virtual_stages > 1; }
};

/// Of a job that runs by `options`.
ScheduleShape schedule_shape(const ParallelOptions& options, std::int64_t microbatches,
                             Pass pass = Pass::train);

/// Empty when there is such a schedule; otherwise what is wrong and the nearest value that is right.
std::string schedule_problem(const ScheduleShape& shape);

/// The chunks of a rank take turns on groups of microbatches. This is the size of each group: at least
/// `stages`, so that a microbatch is back from its trip around the ranks when its next chunk is due (all
/// microbatches, if there are fewer), as even as possible and larger ones first. A later group that is larger
/// than the first would have too few forwards in the warm-up, and ranks would deadlock.
std::vector<int> microbatch_groups(const ScheduleShape& shape);

}  // namespace trainerd::parallel
