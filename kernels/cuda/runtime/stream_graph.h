#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/backend/backend.h"
#include "kernels/cuda/runtime/check_runtime.h"

namespace trainerd::kernels::cuda {

/// The work put on a stream during capture, as an executable graph. The driver owns its device memory.
class StreamGraph final : public DeviceGraph {
 public:
  /// Captures what `issue` puts on `stream`, without running it. Calls of other threads are neither captured
  /// nor blocked. Throws DeviceError, or what `issue` throws; the capture has ended then.
  StreamGraph(cudaStream_t stream, const std::function<void()>& issue);
  ~StreamGraph() override { cudaGraphExecDestroy(executable_); }
  StreamGraph(const StreamGraph&) = delete;
  StreamGraph& operator=(const StreamGraph&) = delete;

  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "running a graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace trainerd::kernels::cuda
