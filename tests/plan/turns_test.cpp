// Plans of computations that take turns.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "core/plan/predict/plan.h"
#include "core/plan/replay/stage_records.h"
#include "core/rank/dry_run.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/rank_schedule.h"
#include "parallel/layout/layout.h"
#include "parallel/schedule/order.h"

using namespace trainerd;

namespace {

using core::rank::ActionKey;
using core::rank::RankRecord;

core::job::JobSpec turns_job(int pp, int microbatches, const std::string& parallel = "") {
  return core::spec::parse_job(
      "model: {layers: 16, hidden: 1024, heads: 8, ffn: 3072, vocab: 8192, seq_len: 1024, "
      "experts: {count: 8, per_token: 2}}\nsteps: 1\nprecision: bf16\ndata: {format: synthetic}\n"
      "cluster: {preset: dgx-h100}\nbatch: {global: " +
          std::to_string(8 * microbatches) +
          ", micro: 1}\nparallel: {dp: 8, ep: 8, schedule: dualpipe-v, virtual_stages: 2, pp: " +
          std::to_string(pp) + parallel + "}\n",
      "job.yaml");
}

struct Recorded {
  core::plan::StageRecords records;
  parallel::ScheduleShape shape;
};
Recorded record_of(const core::job::JobSpec& job) {
  const parallel::Topology topology = core::spec::job_topology(job);
  const parallel::Layout layout = parallel::resolve_layout(
      job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
  return {core::plan::record_all(job, layout, topology.device, core::train::count_all_slots(job, layout)),
          parallel::schedule_shape(job.parallel, job.microbatches())};
}

/// How often a segment runs each operator.
std::map<std::int32_t, int> operators(const RankRecord& record, const ActionKey& key) {
  std::map<std::int32_t, int> counts;
  for (const core::rank::RecordedEvent& e : record.actions.at(key))
    if (e.kind == core::rank::RecordedEvent::Kind::op) ++counts[e.index];
  return counts;
}

}  // namespace

TEST_CASE("a record of a few microbatches has every pair of computations of a step", "[plan][turns]") {
  int pairs = 0;
  for (const int pp : {2, 3, 4, 8})
    for (const int microbatches : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 40}) {
      CAPTURE(pp, microbatches);
      const Recorded recorded = record_of(turns_job(pp, microbatches));
      for (std::size_t rank = 0; rank < recorded.records.of_rank.size(); ++rank) {
        const RankRecord& record = *recorded.records.of_rank[rank];
        for (const auto& [key, count] : recorded.records.counts[rank]) {
          REQUIRE(record.actions.contains(key));
          pairs += key.other ? 1 : 0;
        }
      }
    }
  CHECK(pairs > 100);
}

TEST_CASE("computations that take turns run the operators of both, and hide each other's messages",
          "[plan][turns]") {
  const Recorded recorded = record_of(turns_job(2, 16));
  constexpr auto forward = parallel::ActionKind::forward;
  constexpr auto middle = core::rank::MicrobatchRole::middle;
  const RankRecord& record = *recorded.records.of_rank[0];
  // The backward of the rank's first chunk never runs alone in the middle of a step.
  const auto together = operators(record, {1, forward, middle, ActionKey::Other{0, middle}});
  const auto forward_alone = operators(record, {1, forward, middle});
  std::map<std::int32_t, int> of_backward;
  for (const auto& [op, count] : together) {
    const auto at = forward_alone.find(op);
    const int left = count - (at == forward_alone.end() ? 0 : at->second);
    CHECK(left >= 0);
    if (left > 0) of_backward[op] = left;
  }
  for (const auto& [op, count] : forward_alone) CHECK(together.contains(op));
  CHECK(of_backward.size() > 5);

  double flops = 0, flops_apart = 0;
  const Recorded apart = record_of(turns_job(2, 16, ", overlap_ep: false"));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    flops += recorded.records.of_rank[rank]->flops(recorded.records.counts[rank]);
    flops_apart += apart.records.of_rank[rank]->flops(apart.records.counts[rank]);
  }
  CHECK(flops == Approx(flops_apart).epsilon(1e-12));

  // Without turns and overlap each message of experts is awaited where it is sent, on every device.
  int messages = 0;
  for (const auto& [key, segment] : apart.records.of_rank[0]->actions)
    for (std::size_t i = 0; i < segment.size(); ++i) {
      const RankRecord& one = *apart.records.of_rank[0];
      if (segment[i].kind != core::rank::RecordedEvent::Kind::issue) continue;
      const auto& call = one.collectives[static_cast<std::size_t>(segment[i].index)];
      if (one.groups[static_cast<std::size_t>(call.group)] != parallel::Group::ep) continue;
      ++messages;
      CHECK(!call.background);
      REQUIRE(i + 1 < segment.size());
      CHECK((segment[i + 1].kind == core::rank::RecordedEvent::Kind::wait && segment[i + 1].behind == 0));
    }
  CHECK(messages > 20);

  const auto plan = [](const std::string& parallel) {
    const core::job::JobSpec job = turns_job(2, 16, parallel);
    return core::plan::make_plan(job, core::spec::job_topology(job));
  };
  const core::plan::Plan in_turns = plan(""), one_by_one = plan(", overlap_ep: false");
  const double exposed = in_turns.time.mean[base::LedgerPart::exposed_ep],
               exposed_apart = one_by_one.time.mean[base::LedgerPart::exposed_ep];
  CAPTURE(exposed, exposed_apart);
  CHECK(exposed < 0.5 * exposed_apart);
  CHECK(in_turns.time.step_seconds < one_by_one.time.step_seconds);
}

TEST_CASE("a job of sharded parameters whose passes would take turns is refused", "[spec][turns]") {
  CHECK_THROWS_WITH(turns_job(2, 8, ", zero: 3"),
                    Catch::Contains("parallel.zero") && Catch::Contains("nearest valid: 2"));
  CHECK_NOTHROW(turns_job(2, 8, ", zero: 3, overlap_ep: false"));
}
