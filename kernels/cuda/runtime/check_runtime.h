#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "kernels/base/error.h"

namespace trainerd::kernels::cuda {

/// Throws DeviceError with the runtime's message and the location of the call. It may report an error of
/// earlier work on the device: `doing` says what was being done, not what failed.
inline void check(cudaError_t result, const char* doing,
                  std::source_location where = std::source_location::current()) {
  if (result == cudaSuccess) [[likely]]
    return;
  throw base::device_error(
      std::string(doing) + ": CUDA says " + cudaGetErrorName(result) + ", " + cudaGetErrorString(result),
      where);
}

}  // namespace trainerd::kernels::cuda
