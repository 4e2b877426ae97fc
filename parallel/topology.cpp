#include "parallel/topology.h"

#include "kernels/base/cgroup.h"


#include <algorithm>

namespace trainerd::parallel {

Topology detect_topology(int threads, std::int64_t devices) {
  Topology topology;
  topology.devices_per_node = devices;
  topology.device = kernels::detect_cpu(threads);
  if (threads == 0)
    topology.device.threads = static_cast<int>(std::max<std::int64_t>(1, topology.device.threads / devices));
  topology.node_memory_bytes = base::node_memory_bytes();
  return topology;
}

}  // namespace trainerd::parallel
