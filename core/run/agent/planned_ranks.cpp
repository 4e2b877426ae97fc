#include "core/run/agent/planned_ranks.h"

#include <cstddef>
#include <new>
#include <span>
#include <stdexcept>

#include "core/plan/cost/group_places.h"
#include "core/plan/replay/stage_records.h"
#include "core/plan/search/search.h"
#include "core/train/rank_schedule.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

/// Adds the ranks of the other nodes, one record per pipeline rank: its ranks differ only in which of them
/// saves replicated state.
void add_others(const job::JobSpec& job, const parallel::Layout& layout, const parallel::Topology& topology,
                const NodeRanks& here, std::vector<plan::RankClass>& known) {
  const std::int64_t pp = layout.options.pp;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(pp), layout.grid.ranks() / pp);
  for (std::int64_t rank = here.first; rank < here.first + here.count; ++rank)
    --ranks[static_cast<std::size_t>(
        layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)])];
  const plan::StageRecords records =
      plan::record_all(job, layout, topology.device, train::count_all_slots(job, layout));
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    const std::int64_t who = plan::representative(layout, static_cast<std::int64_t>(p));
    if (ranks[p] > 0)
      known.push_back({{records.memory[p], records.of_rank[p]->snapshot_bytes,
                        records.of_rank[p]->flops(records.counts[p]), rank::staging_bytes(job, layout, who),
                        rank::overhead_bytes(job, layout, who)},
                       ranks[p]});
  }
}

}  // namespace

PlannedRanks plan_ranks(const job::JobSpec& job, const parallel::Layout& layout,
                        const parallel::Topology& topology, const NodeRanks& here, bool leads) {
  const auto too_large = [] {
    return base::capacity_error(
        "the job does not fit: planning it takes more memory than this host has; make the model, the "
        "batch or model.seq_len smaller");
  };
  try {
    rank::require_room_for_ranks(job, topology);
    PlannedRanks plans;
    for (std::int64_t rank = here.first; rank < here.first + here.count; ++rank) {
      plans.here.push_back(rank::dry_run(job, layout, rank, topology.device));
      plans.known.push_back({plans.here.back(), 1});
    }
    try {
      rank::require_fits(plans.here, job, topology, rank::host_snapshots(job), here.first);
    } catch (const base::CapacityError& e) {
      throw base::capacity_error(
          e.what() + ("\n" + plan::near_text(job, topology,
                                             plan::near_changes(job, topology, plan::NoneFits::nothing))));
    }
    if (leads && here.count < layout.grid.ranks()) add_others(job, layout, topology, here, plans.known);
    return plans;
  } catch (const std::bad_alloc&) {
    throw too_large();
  } catch (const std::length_error&) {
    throw too_large();
  }
}

}  // namespace trainerd::core::run
