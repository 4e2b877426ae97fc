#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// The options that a search chooses. Model, global batch, ranks and all else come from the job.
struct LayoutChoice {
  std::int64_t tp = 1, cp = 1, pp = 1, dp = 1, ep = 1;
  std::int64_t etp = 0;
  std::int64_t zero = 1, zero_group = 0;
  std::int64_t bucket_bytes = 0;
  std::int64_t micro = 1;
  std::int64_t virtual_stages = 1;
  bool sequence_parallel = false;
  parallel::ScheduleKind schedule = parallel::ScheduleKind::one_f_one_b;
  job::RecomputeOptions recompute;

  /// parallel::ParallelOptions::gradient_ranks
  std::int64_t gradient_ranks() const { return dp * cp; }
  std::int64_t most_gradient_ranks() const {
    return parallel::ParallelOptions{.tp = tp, .dp = dp, .cp = cp, .ep = ep, .etp = etp}
        .most_gradient_ranks();
  }
  bool operator==(const LayoutChoice&) const = default;
};
LayoutChoice choice_of(const job::JobSpec& job);
job::JobSpec with_choice(const job::JobSpec& job, const LayoutChoice& choice);

/// The keys of `to` that differ from `from`, in the form of a job file: "parallel.tp: 8". dp follows from tp,
/// cp and pp and is listed with them.
std::vector<std::string> differences(const LayoutChoice& from, const LayoutChoice& to);
/// Number of differences.
std::size_t changes(const LayoutChoice& from, const LayoutChoice& to);

/// Values to try. Of combinations that are equivalent only one is in `all_layouts`; invalid ones are left
/// out.
struct LayoutSpace {
  std::vector<std::int64_t> tp = {}, cp = {}, pp = {}, ep = {}, etp = {}, zero = {},
                            micro = {};  ///< empty: all possible values
  std::vector<std::int64_t> zero_group = {}, bucket_bytes = {}, virtual_stages = {};
  std::vector<bool> sequence_parallel = {};
  std::vector<parallel::ScheduleKind> schedule = {};
  std::vector<job::RecomputeOptions> recompute = {};
};

/// Every valid layout of the job's ranks on the topology, from the space and the job's own values:
/// - tp: divisors of the ranks that the model can be split over and that stay within an NVLink domain (unless
///   the job allows more)
/// - cp: 1, and powers of two that divide the remaining ranks and leave each rank kContextTokens of a
/// sequence;
///   the job's own
/// - pp: divisors of the remaining ranks that the layers can fill; dp: the rest, if it divides the global
///   batch
/// - etp: with experts and sequence parallelism, tp and 1
/// - ep: with experts, divisors of their number and of cp x dp; with etp 1 of tp x cp x dp
/// - micro: powers of two
/// - zero: 0 to 3, over all data-parallel ranks, or over groups: those in one NVLink domain, or 8, 32 or 128
/// - buckets: the job's own, because the default rule costs within 0.2% of whole layers
/// - schedule: all; interleaved with the fewest chunks per number of layers in a chunk, if the microbatches
///   are a multiple of the stages
/// - recompute: none, selective, or full of every 1st to 4th layer
/// An axis with values in the space is tried with only those values.
std::vector<LayoutChoice> all_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                                      const LayoutSpace& space = {});

}  // namespace trainerd::core::plan
