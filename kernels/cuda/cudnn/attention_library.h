#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// cuDNN's attention, with plans by problem. Builds without the front end's headers use another
/// implementation (attention_none.cpp): no name, no library.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  /// Runs one problem. Returns false and runs nothing if the library has no plan for it within
  /// `workspace_bytes`.
  virtual bool run(cudaStream_t stream, const AttentionProblem& problem, const AttentionPointers& pointers,
                   std::byte* workspace, std::int64_t workspace_bytes) = 0;
};

/// "cuDNN 9.19.0"; empty without cuDNN.
std::string attention_library_name();
/// Value of Target::attention_workspace for the devices of this process; null without cuDNN.
using PlannedWorkspace = std::int64_t (*)(const Target&, const AttentionCall&);
PlannedWorkspace attention_workspace_plans();
/// Null without cuDNN.
std::unique_ptr<AttentionLibrary> make_attention_library(const Target& target);

}  // namespace trainerd::kernels::cuda
