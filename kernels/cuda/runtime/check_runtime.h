#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "kernels/base/error.h"

namespace trainerd::kernels::cuda {

/// Throws DeviceError with the runtime's words and the place of the call. An error of earlier work on the
/// device may surface here: the message says what was being done, not what failed.
inline void check(cudaError_t result, const char* doing,
                  std::source_location where = std::source_location::current()) {
  if (result == cudaSuccess) [[likely]]
    return;
  throw base::device_error(
      std::string(doing) + ": CUDA says " + cudaGetErrorName(result) + ", " + cudaGetErrorString(result),
      where);
}

/// After a kernel launch: whether it could be launched at all. Errors of its run surface at a later call.
inline void check_launch(const char* kernel, std::source_location where = std::source_location::current()) {
  check(cudaGetLastError(), kernel, where);
}

}  // namespace trainerd::kernels::cuda
