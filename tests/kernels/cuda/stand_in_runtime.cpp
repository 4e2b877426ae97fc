// Functions of the CUDA runtime that cuDNN's front end links to, for a device that exists only as a
// description. The front end queries the current device even if it is given a description.

#include "tests/kernels/cuda/stand_in_runtime.h"

#include <cuda_runtime_api.h>

namespace {
int current_sm_version = 0;
}

void trainerd::test::set_stand_in_device(int sm_version) { current_sm_version = sm_version; }

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  properties->major = current_sm_version / 10;
  properties->minor = current_sm_version % 10;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char*) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "stand-in runtime"; }
cudaError_t cudaDeviceSynchronize() { return cudaErrorStubLibrary; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaErrorStubLibrary; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaErrorStubLibrary; }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return cudaErrorStubLibrary; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaErrorStubLibrary; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaErrorStubLibrary; }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaErrorStubLibrary;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaErrorStubLibrary; }

}  // extern "C"
