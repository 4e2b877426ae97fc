// For builds without cuDNN or its front end: attention only uses our own kernels.

#include "kernels/cuda/cudnn/attention_library.h"

namespace trainerd::kernels::cuda {

std::string attention_library_name() { return ""; }
PlannedWorkspace attention_workspace_plans() { return nullptr; }
std::unique_ptr<AttentionLibrary> make_attention_library(const Target&) { return nullptr; }

}  // namespace trainerd::kernels::cuda
