#include "parallel/topology.h"

#include <unistd.h>

namespace trainerd::parallel {

Topology detect_topology(int threads) {
  Topology topology;
  topology.device = kernels::detect_cpu(threads);
  topology.node_memory_bytes = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return topology;
}

}  // namespace trainerd::parallel
