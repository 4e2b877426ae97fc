#pragma once

#include <cstdint>
#include <string>

#include "core/plan/replay/stage_records.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Calls to our own attention kernels on CUDA devices per step, in the stage where they take longest (without
/// rates: where they are called most).
struct AttentionPlan {
  std::int64_t own_calls = 0, plain_calls = 0;  ///< all calls, and those without tensor cores
  double own_seconds = 0;                       ///< 0: not predicted
  // Deterministic backward calls that exceed the library's workspace limit.
  std::int64_t limited_calls = 0;
  std::int64_t limited_tokens = 0;               ///< of the longest call
  double limited_seconds = 0, fast_seconds = 0;  ///< as planned, and with attention: fast
};
AttentionPlan plan_attention(const StageRecords& records, const parallel::Topology& topology, bool timed);

/// Lines of the plan; empty if the library runs all attention.
std::string attention_text(const AttentionPlan& attention);

}  // namespace trainerd::core::plan
