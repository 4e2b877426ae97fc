#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/grid.h"
#include "parallel/layout/options.h"
#include "parallel/layout/span.h"
#include "parallel/layout/topology.h"

namespace trainerd::parallel {

/// How the data-parallel ranks are taken together: one group, or `inner` neighbours and then the groups
/// across.
struct DataParallelLevels {
  std::int64_t size = 1;
  std::int64_t inner = 1;
  bool replicas = false;  ///< the groups across hold replicas (hybrid sharding), not parts
  bool one() const { return inner == size; }
};

/// Bytes of gradients that are reduced at once where the job does not say: 8 MiB for each data-parallel rank,
/// at least 25 MiB. A ring of n ranks moves a bucket in hops of an n-th, which should take long beside a
/// hop's latency (14 us on a card of 50 GB/s: 0.7 MB).
std::int64_t default_bucket_bytes(std::int64_t dp);

/// What actually runs: resolved from the job and the devices that are there. Everything below the trainer is
/// built from it and rebuilt when it changes, never patched.
struct Layout {
  ProcessGrid grid;
  ParallelOptions options;
  std::vector<ChunkSpan> chunks;  ///< one for each (stage, virtual stage), in model order
  DataParallelLevels dp_levels;
};

/// What a model's parts cost relative to each other, for splitting it over pipeline chunks.
struct ModelCosts {
  std::int64_t layers = 0;
  double layer = 1;
  double embedding = 0;
  double head = 0;
};

/// Throws CapacityError when the job asks for more ranks than the topology has devices, SpecError when the
/// layers cannot be split over its chunks or the schedule does not exist for its sizes.
Layout resolve_layout(const ParallelOptions& options, const Topology& topology, const ModelCosts& costs,
                      std::int64_t microbatches);

/// The chunks of one pipeline rank, in model order: chunk c of the model lives on rank c % pp.
std::vector<ChunkSpan> chunks_of(const Layout& layout, std::int64_t pipeline_rank);

/// One line for people and manifests: "tp1 cp1 ep1 dp1 pp1 zero1 1f1b".
std::string describe(const Layout& layout);
const char* to_string(ScheduleKind kind);

}  // namespace trainerd::parallel
