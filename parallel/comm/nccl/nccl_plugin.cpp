#include "parallel/comm/nccl/nccl_plugin.h"

#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/error.h"

namespace trainerd::parallel {

NcclPlugin open_nccl_plugin() {
  using Entry = const NcclPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(kernels::cuda_plugin_symbol("trainerd_nccl_plugin"));
  const NcclPlugin plugin = *entry();
  if (std::string(plugin.interface_hash) != TRAINERD_COMM_INTERFACE_HASH)
    throw base::device_error(
        "the CUDA plugin is of another build than this executable: install both from one");
  return plugin;
}

}  // namespace trainerd::parallel
