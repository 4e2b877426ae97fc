#include "core/plan/predict/attention_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/units.h"

namespace trainerd::core::plan {
namespace {

AttentionPlan of_stage(const rank::RankRecord& record, const rank::ActionCounts& counts,
                       const parallel::Topology& topology, bool timed) {
  AttentionPlan plan;
  const auto count = [&](const rank::RecordedSegment& segment, std::int64_t times) {
    for (const rank::RecordedEvent& event : segment) {
      if (event.kind != rank::RecordedEvent::Kind::op) continue;
      const rank::RecordedOp& op = record.ops[static_cast<std::size_t>(event.index)];
      const bool plain = op.what.kernel == kernels::AttentionKernel::plain;
      if (!plain && op.what.kernel != kernels::AttentionKernel::tensor_cores) continue;
      const double seconds = timed ? static_cast<double>(times) * op_seconds(op, topology) : 0;
      plan.own_calls += times;
      plan.own_seconds += seconds;
      if (plain) plan.plain_calls += times;
      if (!op.what.limited) continue;
      plan.limited_calls += times;
      plan.limited_tokens = std::max(plan.limited_tokens, op.what.length);
      plan.limited_seconds += seconds;
      if (timed) plan.fast_seconds += static_cast<double>(times) * op_seconds(unlimited(op), topology);
    }
  };
  count(record.before, 1), count(record.after, 1);
  for (const auto& [key, times] : counts) count(record.actions.at(key), times);
  return plan;
}

}  // namespace

AttentionPlan plan_attention(const StageRecords& records, const parallel::Topology& topology, bool timed) {
  AttentionPlan worst;
  for (std::size_t rank = 0; rank < records.of_rank.size(); ++rank) {
    const AttentionPlan stage = of_stage(*records.of_rank[rank], records.counts[rank], topology, timed);
    if (std::tie(worst.own_seconds, worst.own_calls) < std::tie(stage.own_seconds, stage.own_calls))
      worst = stage;
  }
  return worst;
}

std::string attention_text(const AttentionPlan& a) {
  if (a.own_calls == 0) return "";
  std::string text = fmt::format("\nattention: {} calls per step run by our own kernels{}{}\n", a.own_calls,
                                 a.plain_calls == 0             ? ""
                                 : a.plain_calls == a.own_calls ? ", without tensor cores"
                                                                : ", some without tensor cores",
                                 a.own_seconds > 0 ? ", " + duration(a.own_seconds) : "");
  if (a.limited_calls == 0) return text;
  text += fmt::format(
      "  {} of them are the deterministic backward of {} tokens, for which the library needs more workspace "
      "than there is",
      a.limited_calls, a.limited_tokens);
  if (a.limited_seconds > 0)
    text += fmt::format(": {} per step, {} with attention: fast", duration(a.limited_seconds),
                        duration(a.fast_seconds));
  return text + "\n";
}

}  // namespace trainerd::core::plan
