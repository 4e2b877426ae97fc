#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// Plans of the installed cuDNN for attention on a device, made from a description without a context. So an
/// agent gets the same answers as its workers. Making a plan takes a second or two; each is made once.
class AttentionPlans {
 public:
  /// An empty description means that nothing can be planned.
  explicit AttentionPlans(AttentionDevice device) : device_(std::move(device)) {}

  /// Workspace bytes, or kNoAttentionPlan. kUnknownAttentionPlan if even the simplest call has no plan,
  /// because then the failure is not due to this call.
  std::int64_t workspace(const AttentionCall& call);

 private:
  std::int64_t plan(const AttentionCall& call) const;
  bool works();

  AttentionDevice device_;
  std::map<AttentionCall, std::int64_t> workspaces_;
};

}  // namespace trainerd::kernels::cuda
