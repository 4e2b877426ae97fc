#include "other_software.h"

#include <memory>
#include <string_view>

#include "core/plan/cost/cost_model.h"
#include "core/rank/record.h"

namespace trainerd::test {
namespace {

using namespace core::plan;
using parallel::OpKind;

/// Cost of gathering a layer's parameters or scattering its gradients.
TransferCost zero_cost(const core::rank::RecordedCollective& c, const GroupPlace& place,
                       const parallel::Topology& t, const OtherSoftware& other, bool recomputed) {
  // A layer's gathers in forward and backward look alike: each carries half of the cost of the third.
  const double times = c.kind == OpKind::all_gather && recomputed ? 1 + other.gathered_again / 2 : 1;
  const double pieces = times * static_cast<double>(other.collectives_of_layer);
  TransferCost cost = collective_cost(c.kind, c.bytes / other.collectives_of_layer, place, t);
  cost.latency *= pieces, cost.bandwidth *= pieces;
  if (other.part_seconds > 0) {
    // The copies read and write all bytes; the parts of a gather are first filled with zeros.
    const double moved = times * static_cast<double>(c.bytes) * (c.kind == OpKind::all_gather ? 3 : 2);
    cost.latency += pieces * static_cast<double>(place.size) * other.part_seconds +
                    moved / (t.memory_bytes_per_second * t.rates.memory_efficiency);
  }
  return cost;
}

bool moves_zero_state(const core::rank::RecordedCollective& c) {
  const std::string_view label = c.label;
  return (label == "parameters" && c.kind == OpKind::all_gather) ||
         (label == "gradients" && c.kind == OpKind::reduce_scatter);
}

bool is_elementwise(kernels::Operator op) {
  using enum kernels::Operator;
  return op == add || op == add_norm_forward || op == add_norm_backward || op == qk_norm_rope_forward ||
         op == qk_norm_rope_backward;
}

/// Two transfers in sequence. Each uses its ports for its part of the time.
TransferCost one_after_another(const TransferCost& a, const TransferCost& b) {
  TransferCost both{.latency = a.latency + b.latency, .bandwidth = a.bandwidth + b.bandwidth};
  for (std::size_t i = 0; i < kPorts && both.bandwidth > 0; ++i)
    both.shares[i] = (a.shares[i] * a.bandwidth + b.shares[i] * b.bandwidth) / both.bandwidth;
  return both;
}

}  // namespace

PlanChanges changes_of(const OtherSoftware& other, const core::job::JobSpec& job,
                       const parallel::Topology& topology) {
  PlanChanges changes;
  if (other.one_level)
    changes.layout = [](parallel::Layout& layout) {
      layout.dp_levels = {layout.options.dp, layout.options.dp, false};
    };
  if (other.logit_bytes > 0)
    changes.more_logits = [other, job](const StagePlan& stage) -> std::int64_t {
      if (!stage.chunks.back().head) return 0;
      const auto own = stage.terms.find("logits");
      return job.batch.micro * job.model.seq_len * job.model.vocab / job.parallel.tp * other.logit_bytes -
             (own == stage.terms.end() ? 0 : own->second);
    };
  changes.replay = [other, job, topology](const GroupPlaces& groups, ReplayInput& input) {
    const auto t = std::make_shared<parallel::Topology>(topology);
    input.messages_stop_host = other.messages_stop_host;
    const bool recomputed = job.recompute.kind == core::job::RecomputeKind::full;
    input.collective_cost = [t, &groups, other, recomputed, own = input.collective_cost](
                                std::int64_t rank, const core::rank::RecordedCollective& c,
                                const core::rank::RankRecord& record) {
      if (!moves_zero_state(c)) return own(rank, c, record);
      const GroupPlace& place = groups.at(rank, record.groups[static_cast<std::size_t>(c.group)]);
      return zero_cost(c, place, *t, other, recomputed);
    };
    if (other.elementwise != 1 || other.scales_by_maximum)
      input.op_seconds = [t, other, own = input.op_seconds](const core::rank::RecordedOp& op) {
        double seconds = own(op) * (is_elementwise(op.op) ? other.elementwise : 1);
        // Each product rounds two of activations, gradients and weights: of the three products' six operands
        // two are read for a maximum, 2 of the 3 bytes that rounding moves.
        if (other.scales_by_maximum && op.what.format == kernels::GemmFormat::fp8)
          seconds += rounding_bytes(op.what) * (2.0 / 6) * (2.0 / 3) /
                     (t->memory_bytes_per_second * t->rates.memory_efficiency);
        return seconds;
      };
    const parallel::ParallelOptions& p = job.parallel;
    if (!other.scatter_flows || p.sequence_parallel || p.tp == 1) return;
    input.message_cost = [t, &groups, tp = p.tp, bytes = core::rank::flow_bytes(job)](int from, int to) {
      return one_after_another(
          message_cost(bytes / tp, groups.link(from, to), *t),
          collective_cost(OpKind::all_gather, bytes, groups.at(to, parallel::Group::tp), *t));
    };
  };
  return changes;
}

}  // namespace trainerd::test
