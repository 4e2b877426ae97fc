#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/grid.h"
#include "parallel/options.h"
#include "parallel/topology.h"

namespace trainerd::parallel {

/// Layers [begin, end) of one pipeline chunk, and whether it holds the embedding and the head.
struct StageSpan {
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  bool embedding = false;
  bool head = false;
};

/// What actually runs: resolved from the job and the devices that are there. Everything below the trainer is built from
/// it and rebuilt when it changes, never patched.
struct Layout {
  ProcessGrid grid;
  ParallelOptions options;
  std::vector<StageSpan> chunks;  ///< one for each (stage, virtual stage), in model order
  std::int64_t generation = 0;    ///< raised each time the layout is resolved anew
};

/// Throws CapacityError when the job asks for more ranks than the topology has devices.
Layout resolve_layout(const ParallelOptions& options, const Topology& topology, std::int64_t layers);

/// One line for people and manifests: "tp1 cp1 ep1 dp1 pp1 zero1 1f1b".
std::string describe(const Layout& layout);
const char* to_string(ScheduleKind kind);

}  // namespace trainerd::parallel
