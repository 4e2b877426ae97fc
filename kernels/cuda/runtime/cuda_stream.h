#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "kernels/backend/backend.h"
#include "kernels/cuda/runtime/check_runtime.h"

namespace trainerd::kernels::cuda {

/// A stream that does not synchronise with the legacy default stream.
class CudaStream final : public Stream {
 public:
  CudaStream(std::string name, Arena* scratch) : Stream(std::move(name), scratch) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  // Work on the stream still runs to its end.
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Handle of a stream that the CUDA backend made. First flushes its held calls.
inline cudaStream_t stream_of(const Stream& stream) {
  stream.flush();
  return static_cast<const CudaStream&>(stream).get();
}

}  // namespace trainerd::kernels::cuda
