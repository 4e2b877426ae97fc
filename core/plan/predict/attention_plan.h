#pragma once

#include <cstdint>
#include <string>

#include "core/plan/replay/stage_records.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Attention by our own kernels on CUDA devices, in a step of the stage where it takes longest (or, without
/// rates, where they are called most).
struct AttentionPlan {
  std::int64_t own_calls = 0, plain_calls = 0;  ///< by our own kernels; those of them without tensor cores
  double own_seconds = 0;                       ///< 0: not predicted
  // Deterministic backwards that are too long for the library's workspace.
  std::int64_t limited_calls = 0;
  std::int64_t limited_tokens = 0;               ///< of the longest
  double limited_seconds = 0, fast_seconds = 0;  ///< as they run, and with attention: fast
};
AttentionPlan plan_attention(const StageRecords& records, const parallel::Topology& topology,
                             std::int64_t microbatches, bool timed);

/// Lines of the plan; empty where the library runs all.
std::string attention_text(const AttentionPlan& attention);

}  // namespace trainerd::core::plan
