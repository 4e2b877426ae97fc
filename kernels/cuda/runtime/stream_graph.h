#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/backend/backend.h"
#include "kernels/cuda/runtime/check_runtime.h"

namespace trainerd::kernels::cuda {

/// What was put on a stream while it was captured, as an executable graph. Its memory on the device is the
/// driver's own.
class StreamGraph final : public DeviceGraph {
 public:
  /// Captures what `issue` puts on `stream`, from which nothing runs. Other threads' calls are no part of it
  /// and are not hindered. Throws DeviceError, or what `issue` throws; the stream is no longer captured then.
  StreamGraph(cudaStream_t stream, const std::function<void()>& issue);
  ~StreamGraph() override { cudaGraphExecDestroy(executable_); }
  StreamGraph(const StreamGraph&) = delete;
  StreamGraph& operator=(const StreamGraph&) = delete;

  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "running a graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace trainerd::kernels::cuda
