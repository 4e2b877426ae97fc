#pragma once

#include <cublasLt.h>

#include "kernels/cuda/runtime/check_runtime.h"

namespace trainerd::kernels::cuda {

inline void check(cublasStatus_t result, const char* doing,
                  std::source_location where = std::source_location::current()) {
  if (result == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw base::device_error(std::string(doing) + ": cuBLASLt says " + cublasLtGetStatusName(result) + ", " +
                               cublasLtGetStatusString(result),
                           where);
}

}  // namespace trainerd::kernels::cuda
