#pragma once

#include <memory>
#include <string>

#include "parallel/comm/nccl/nccl_world.h"

namespace trainerd::parallel {

/// What the CUDA plugin (kernels/backend/cuda_plugin.h) offers to several ranks. Both functions throw
/// DeviceError in a build without NCCL, and CommError.
struct NcclPlugin {
  const char* interface_hash = "";
  /// Of a new world: made by one rank, given to all.
  std::string (*unique_id)() = nullptr;
  /// Returns when all ranks have come. The calling thread's CUDA device is NcclOptions::device from then on.
  std::unique_ptr<NcclWorld> (*make_world)(NcclOptions options) = nullptr;
};

/// Opens the plugin as kernels::open_cuda_plugin does, and throws as it does.
NcclPlugin open_nccl_plugin();

}  // namespace trainerd::parallel
