#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// cuDNN's attention, plans by problem. A build without the front end's headers has another implementation
/// (attention_none.cpp): no name, no library.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  /// Runs one problem. False, and nothing run, when the library has no plan for it within `workspace_bytes`.
  virtual bool run(cudaStream_t stream, const AttentionProblem& problem, const AttentionPointers& pointers,
                   std::byte* workspace, std::int64_t workspace_bytes) = 0;
};

/// "cuDNN 9.19.0"; empty without it.
std::string attention_library_name();
/// As Target::attention_workspace, for the devices of this process; null without it.
using PlannedWorkspace = std::int64_t (*)(const Target&, const AttentionCall&);
PlannedWorkspace attention_workspace_plans();
/// Null without it.
std::unique_ptr<AttentionLibrary> make_attention_library(const Target& target);

}  // namespace trainerd::kernels::cuda
