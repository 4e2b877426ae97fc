#include "core/plan/replay/graph_issue.h"

#include "core/plan/cost/cost_model.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::plan {

GraphIssue graph_issue(const job::JobSpec& job, const rank::RankRecord& record,
                       const rank::ActionCounts& counts, const parallel::Topology& topology) {
  GraphIssue issue;
  const double launch = topology.measured.known() ? 0 : topology.rates.launch_seconds;
  if (topology.device.kind != kernels::DeviceKind::cuda || job.cuda_graphs != job::CudaGraphs::automatic ||
      launch == 0)
    return issue;
  using Kind = rank::RecordedEvent::Kind;
  const auto device = [&](const rank::RecordedSegment& segment, double times) {
    for (const rank::RecordedEvent& e : segment)
      if (e.kind == Kind::op)
        issue.device_seconds += times * op_seconds(record.ops[static_cast<std::size_t>(e.index)], topology);
  };
  device(record.before, 1), device(record.after, 1);
  std::int64_t compared = 0;
  for (const auto& [key, times] : counts) {
    const rank::RecordedSegment& segment = record.actions.at(key);
    device(segment, static_cast<double>(times));
    std::int64_t list = 0;
    const auto end_list = [&] {
      const bool graph = list >= kernels::kMinGraphCalls;
      issue.launches += times * (graph ? 1 : list);
      compared += graph ? times * list : 0;
      list = 0;
    };
    for (const rank::RecordedEvent& e : segment) {
      const bool op = e.kind == Kind::op;
      issue.calls += op ? times : 0;
      if (op && joins_list(record.ops[static_cast<std::size_t>(e.index)])) {
        ++list;
        continue;
      }
      end_list();
      issue.launches += op ? times : 0;
    }
    end_list();
  }
  issue.issue_seconds = real(issue.calls) * launch;
  issue.graph_issue_seconds = real(issue.launches) * launch + real(compared) * kComparedCallSeconds;
  issue.used = kernels::graphs_pay(issue.issue_seconds, issue.device_seconds);
  return issue;
}

}  // namespace trainerd::core::plan
