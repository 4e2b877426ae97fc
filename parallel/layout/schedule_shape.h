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
  int virtual_stages = 1;  ///< chunks per rank; above 1 only with `interleaved`
  int microbatches = 1;
  Pass pass = Pass::train;
  /// True: receives are posted before other computations, which then overlap them. False: they are posted
  /// right before use, for ranks that wait for each transfer where it is posted.
  bool early_receives = true;

  int chunks() const { return stages * virtual_stages; }
  /// True if the last rank also sends to the first.
  bool ring() const { return stages > 1 && virtual_stages > 1; }
};

/// Shape of the schedule of a job with these options.
ScheduleShape schedule_shape(const ParallelOptions& options, std::int64_t microbatches,
                             Pass pass = Pass::train);

/// Empty if the schedule exists. Otherwise explains what is wrong and names the nearest valid value.
std::string schedule_problem(const ScheduleShape& shape);

/// Sizes of the groups of microbatches that the chunks of a rank alternate on. A group has at least `stages`
/// microbatches (all, if there are fewer), so that a microbatch has passed through all ranks when its next
/// chunk is due. Sizes are as even as possible, larger groups first: a later group larger than the first
/// would have too few warm-up forwards, and ranks would deadlock.
std::vector<int> microbatch_groups(const ScheduleShape& shape);

}  // namespace trainerd::parallel
