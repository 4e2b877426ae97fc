#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/grid.h"
#include "parallel/layout/options.h"
#include "parallel/layout/span.h"
#include "parallel/layout/split.h"
#include "parallel/layout/topology.h"

namespace trainerd::parallel {

/// Grouping of the ranks that sum gradients (data-parallel and context-parallel ones): one group, or groups
/// of `inner` neighbours and groups across them.
struct DataParallelLevels {
  std::int64_t size = 1;
  std::int64_t inner = 1;
  bool replicas = false;  ///< the groups across hold replicas (hybrid sharding), not different parts
  bool one() const { return inner == size; }
};

/// Default bytes of gradients per reduction: 8 MiB per rank that sums them
/// (ParallelOptions::most_gradient_ranks), at least 25 MiB. A ring of n ranks moves a bucket in hops of 1/n
/// of it, and a hop should take long compared with its latency (14 us on a card of 50 GB/s: 0.7 MB).
std::int64_t default_bucket_bytes(std::int64_t gradient_ranks);

/// The configuration that runs, resolved from the job and the available devices. Everything below the trainer
/// is built from it, and rebuilt rather than modified when it changes.
struct Layout {
  ProcessGrid grid;
  ProcessGrid expert_grid;  ///< GridViews::expert
  ParallelOptions options;
  std::vector<ChunkSpan> chunks;  ///< one per (stage, virtual stage), in model order
  DataParallelLevels dp_levels;

  /// Size of an axis of `options`.
  std::int64_t size(Axis axis) const { return axis == Axis::ep ? options.ep : grid.size(axis); }
  /// The rank's place on it.
  std::int64_t place(std::int64_t rank, Axis axis) const {
    return (axis == Axis::ep ? expert_grid : grid).coordinate(rank)[static_cast<std::size_t>(axis)];
  }
};

/// Throws CapacityError if the job has more ranks than the topology has devices. Throws SpecError if the
/// layers cannot be split over its chunks, or the schedule does not support its sizes.
Layout resolve_layout(const ParallelOptions& options, const Topology& topology, const ModelCosts& costs,
                      std::int64_t microbatches);

/// The chunks of one pipeline rank, in model order (ScheduleShape::chunk_of).
std::vector<ChunkSpan> chunks_of(const Layout& layout, std::int64_t pipeline_rank);

/// One line for logs and manifests: "tp1 cp1 ep1 dp1 pp1 zero1 1f1b", with etp1 behind ep where experts are
/// whole.
std::string describe(const Layout& layout);
const char* to_string(ScheduleKind kind);

}  // namespace trainerd::parallel
