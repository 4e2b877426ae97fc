#include "kernels/cuda/runtime/stream_graph.h"

#include <utility>

namespace trainerd::kernels::cuda {
namespace {

/// Owns the captured graph until it is instantiated.
class Captured {
 public:
  Captured() = default;
  ~Captured() {
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  cudaGraph_t graph = nullptr;
};

/// Throws for an error and clears it, so that a later launch does not report it again.
void check_and_clear(cudaError_t result, const char* doing) {
  if (result != cudaSuccess) cudaGetLastError();
  check(result, doing);
}

}  // namespace

StreamGraph::StreamGraph(cudaStream_t stream, const std::function<void()>& issue) {
  check_and_clear(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  Captured captured;
  try {
    issue();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured.graph);
    cudaGetLastError();
    throw;
  }
  check_and_clear(cudaStreamEndCapture(stream, &captured.graph), "ending a capture");
  check_and_clear(cudaGraphInstantiate(&executable_, captured.graph, 0), "making a graph");
}

}  // namespace trainerd::kernels::cuda
