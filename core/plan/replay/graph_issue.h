#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/rank/record.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Host seconds to visit one call and compare it with a graph's: measured on two cores of an AMD EPYC
/// (tests/README.md).
inline constexpr double kComparedCallSeconds = 0.12e-6;

/// True if a call can be in one list with its neighbours. Calls that the host writes or reads cannot.
inline bool joins_list(const rank::RecordedOp& op) {
  return op.op != kernels::Operator::write && op.op != kernels::Operator::read_back;
}

/// Host time to launch a step's operators, one by one and as CUDA graphs (kernels::GraphBackend), and whether
/// the rank uses graphs, by the same rule as a run.
struct GraphIssue {
  bool used = false;
  std::int64_t calls = 0;     ///< operator calls of the actions, per step
  std::int64_t launches = 0;  ///< with graphs: launches of graphs and of the calls between them
  double issue_seconds = 0, graph_issue_seconds = 0;
  double device_seconds = 0;  ///< device time of the step's operators
};
GraphIssue graph_issue(const job::JobSpec& job, const rank::RankRecord& record,
                       const rank::ActionCounts& counts, const parallel::Topology& topology);

}  // namespace trainerd::core::plan
