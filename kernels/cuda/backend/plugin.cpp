#include "kernels/backend/cuda_plugin.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/runtime/check.h"

namespace trainerd::kernels::cuda {
namespace {

int device_count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw base::device_error(
        "no CUDA device here (" +
        std::string(result == cudaSuccess ? "the driver shows none" : cudaGetErrorString(result)) +
        "): run where `nvidia-smi` shows one, or set device: cpu");
  }
  return count;
}

// The device's total memory. Asking for free memory would create a context.
std::int64_t memory_bytes(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading a device's properties");
  return static_cast<std::int64_t>(properties.totalGlobalMem);
}

std::unique_ptr<Backend> make_backend(int device) { return std::make_unique<CudaBackend>(device); }

}  // namespace
}  // namespace trainerd::kernels::cuda

extern "C" __attribute__((visibility("default"))) const trainerd::kernels::CudaPlugin*
trainerd_cuda_plugin() {
  using namespace trainerd::kernels;
  static constexpr CudaPlugin kPlugin{.interface_hash = TRAINERD_INTERFACE_HASH,
                                      .device_count = cuda::device_count,
                                      .describe = cuda::describe_device,
                                      .memory_bytes = cuda::memory_bytes,
                                      .make_backend = cuda::make_backend};
  return &kPlugin;
}
