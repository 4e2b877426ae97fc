#include "core/rank/backend.h"

#include "kernels/backend/cuda_plugin.h"
#include "kernels/cpu/cpu_backend.h"

namespace trainerd::core::rank {

std::unique_ptr<kernels::Backend> make_backend(const parallel::Topology& topology, base::ThreadPool& pool,
                                               std::int64_t rank) {
  if (topology.device.kind == kernels::DeviceKind::cuda)
    return kernels::open_cuda_plugin().make_backend(topology.device_of(rank));
  return std::make_unique<kernels::CpuBackend>(topology.device, pool);
}

}  // namespace trainerd::core::rank
