#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/rank/record.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Of the host, to walk over one call and compare it with a graph's: measured on two cores of an AMD EPYC
/// (tests/README.md).
inline constexpr double kComparedCallSeconds = 0.12e-6;

/// Whether a call joins a list with its neighbours: what the host writes or reads does not.
inline bool joins_list(const rank::RecordedOp& op) {
  return op.op != kernels::Operator::write && op.op != kernels::Operator::read_back;
}

/// The time that a rank's host needs to launch the operators of a step, one by one and as CUDA graphs
/// (kernels::GraphBackend), and whether the rank uses graphs: by the rule that a run decides by.
struct GraphIssue {
  bool used = false;
  std::int64_t calls = 0;     ///< of the actions, per step
  std::int64_t launches = 0;  ///< in their place with graphs: of graphs, and of calls between them
  double issue_seconds = 0, graph_issue_seconds = 0;
  double device_seconds = 0;  ///< of the step's operators
};
GraphIssue graph_issue(const job::JobSpec& job, const rank::RankRecord& record,
                       const parallel::Topology& topology);

}  // namespace trainerd::core::plan
