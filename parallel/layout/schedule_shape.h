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
  int virtual_stages = 1;  ///< chunks per rank: above 1 only with `interleaved`, and 2 where `goes_back`
  int microbatches = 1;
  Pass pass = Pass::train;
  /// True: receives are posted before other computations, which then overlap them. False: they are posted
  /// right before use, for ranks that wait for each transfer where it is posted.
  bool early_receives = true;

  int chunks() const { return stages * virtual_stages; }
  bool several_chunks() const { return stages > 1 && virtual_stages > 1; }
  /// True if the last rank also sends to the first.
  bool ring() const { return several_chunks() && !goes_back(kind); }
  /// Pipeline rank of a chunk of the model. Chunks go around the ranks, or forth and back again.
  int rank_of(int chunk) const {
    return goes_back(kind) && chunk >= stages ? chunks() - 1 - chunk : chunk % stages;
  }
  /// The i-th of a rank's chunks, in model order.
  int chunk_of(int rank, int i) const {
    return goes_back(kind) && i > 0 ? chunks() - 1 - rank : i * stages + rank;
  }
  /// Place of a chunk among those of its rank.
  int place_of(int chunk) const { return chunk / stages; }
  /// True if a chunk's output is the input of another chunk on the same rank.
  bool stays_on_rank(int chunk) const { return chunk + 1 < chunks() && rank_of(chunk) == rank_of(chunk + 1); }
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
