#pragma once

#include <optional>
#include <string>

#include "kernels/target.h"

namespace trainerd::parallel {

/// What there is to place ranks on. Today one node's CPU; NVLink domains, rails and presets join it with their layers.
struct Topology {
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;
  kernels::Target device;
  std::int64_t node_memory_bytes = 0;
};

/// The machine this process runs on, seen as one device of `threads` threads (0: every core it may use).
Topology detect_topology(int threads);

}  // namespace trainerd::parallel
