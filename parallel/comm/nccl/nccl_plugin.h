#pragma once

#include <memory>
#include <string>

#include "parallel/comm/nccl/nccl_world.h"

namespace trainerd::parallel {

/// Entry points of the CUDA plugin (kernels/backend/cuda_plugin.h) for jobs of several ranks. Both functions
/// throw CommError, and DeviceError in a build without NCCL.
struct NcclPlugin {
  const char* interface_hash = "";
  /// Id of a new world. One rank makes it and passes it to all others.
  std::string (*unique_id)() = nullptr;
  /// Returns when all ranks have joined. The calling thread's CUDA device is NcclOptions::device from then
  /// on.
  std::unique_ptr<NcclWorld> (*make_world)(NcclOptions options) = nullptr;
};

/// Opens the plugin as kernels::open_cuda_plugin does, and throws as it does.
NcclPlugin open_nccl_plugin();

}  // namespace trainerd::parallel
