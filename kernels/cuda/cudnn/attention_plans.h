#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// What the installed cuDNN plans for attention on a device, by descriptions: no context is made, so that an
/// agent asks as its workers do. A plan takes a second or two to make and is asked for once.
class AttentionPlans {
 public:
  /// Without a description nothing can be planned.
  explicit AttentionPlans(AttentionDevice device) : device_(std::move(device)) {}

  /// Workspace bytes, kNoAttentionPlan, or kUnknownAttentionPlan where not even the plainest call has a plan:
  /// then it is not the call that plans fail for.
  std::int64_t workspace(const AttentionCall& call);

 private:
  std::int64_t plan(const AttentionCall& call) const;
  bool works();

  AttentionDevice device_;
  std::map<AttentionCall, std::int64_t> workspaces_;
};

}  // namespace trainerd::kernels::cuda
