#include "parallel/layout/topology.h"

#include <algorithm>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/cgroup.h"
#include "kernels/base/error.h"
#include "parallel/layout/device_peaks.h"

namespace trainerd::parallel {

Topology detect_topology(int threads, std::int64_t devices, kernels::Isa most) {
  Topology topology;
  topology.devices_per_node = devices;
  topology.device = kernels::detect_cpu(threads, most);
  if (threads == 0)
    topology.device.threads = static_cast<int>(std::max<std::int64_t>(1, topology.device.threads / devices));
  topology.node_memory_bytes = base::node_memory_bytes();
  return topology;
}

std::int64_t ranks_per_device(std::int64_t ranks, std::int64_t count, Devices devices) {
  if (ranks > count && devices == Devices::own)
    throw base::capacity_error("the job has " + std::to_string(ranks) + " ranks on this machine, which has " +
                               std::to_string(count) + (count == 1 ? " CUDA device" : " CUDA devices") +
                               ": set the axes of `parallel` to fewer ranks, or cluster.communication to "
                               "staged, with which they share "
                               "devices");
  return (ranks + count - 1) / count;
}

Topology detect_cuda_topology(std::int64_t ranks, Devices devices) {
  const kernels::CudaPlugin cuda = kernels::open_cuda_plugin();
  Topology topology;
  topology.devices_per_node = ranks;
  topology.ranks_per_device = ranks_per_device(ranks, cuda.device_count(), devices);
  topology.device = cuda.describe(0);
  for (int device = 1; device <= topology.device_of(ranks - 1); ++device)
    if (const kernels::Target other = cuda.describe(device); other.name != topology.device.name)
      throw base::device_error("CUDA device 0 is " + topology.device.name + " and device " +
                               std::to_string(device) + " is " + other.name +
                               ": choose devices that are alike by CUDA_VISIBLE_DEVICES");
  topology.device_memory_bytes = cuda.memory_bytes(0) / topology.ranks_per_device;
  topology.device.memory_bytes = topology.device_memory_bytes;
  topology.peak = published_peaks(topology.device.name);
  topology.node_memory_bytes = base::node_memory_bytes();
  return topology;
}

}  // namespace trainerd::parallel
