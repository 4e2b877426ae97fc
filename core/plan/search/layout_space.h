#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// The options that a search chooses. Model, global batch, ranks and all else come from the job.
struct LayoutChoice {
  std::int64_t tp = 1, pp = 1, dp = 1;
  std::int64_t zero = 1, zero_group = 0;
  std::int64_t bucket_bytes = 0;
  std::int64_t micro = 1;
  std::int64_t virtual_stages = 1;
  bool sequence_parallel = false;
  parallel::ScheduleKind schedule = parallel::ScheduleKind::one_f_one_b;
  job::RecomputeOptions recompute;

  bool operator==(const LayoutChoice&) const = default;
};
LayoutChoice choice_of(const job::JobSpec& job);
job::JobSpec with_choice(const job::JobSpec& job, const LayoutChoice& choice);

/// The keys of `to` that differ from `from`, in the form of a job file: "parallel.tp: 8". dp follows from tp
/// and pp and is listed with them.
std::vector<std::string> differences(const LayoutChoice& from, const LayoutChoice& to);
/// Number of differences.
std::size_t changes(const LayoutChoice& from, const LayoutChoice& to);

/// Values to try. Of combinations that are equivalent only one is in `all_layouts`; invalid ones are left
/// out.
struct LayoutSpace {
  std::vector<std::int64_t> tp = {}, pp = {}, zero = {}, micro = {};  ///< empty: all possible values
  std::vector<std::int64_t> zero_group = {}, bucket_bytes = {}, virtual_stages = {};
  std::vector<bool> sequence_parallel = {};
  std::vector<parallel::ScheduleKind> schedule = {};
  std::vector<job::RecomputeOptions> recompute = {};
};

/// Every layout of the job's ranks on the topology that a job may ask for, out of the space and the job's own
/// values:
/// - tp: divisors of the ranks that the model can be split over and that stay in an NVLink domain (unless the
/// job lets them leave);
///   pp: divisors of what is left that the layers fill; dp: the rest, where the global batch divides
/// - micro: powers of two
/// - zero 0 to 3, over all data-parallel ranks or a group of those that share an NVLink domain, of 8, 32 or
/// 128
/// - buckets as the job has them: by the default's rule they cost within 0.2% of whole layers
/// - every schedule; interleaved with the fewest chunks for each number of layers in a chunk, where the
/// microbatches are a multiple of
///   the stages
/// - recompute none, selective, or full of every 1st to 4th layer
/// An axis in the space that has values is tried with those alone.
std::vector<LayoutChoice> all_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                                      const LayoutSpace& space = {});

}  // namespace trainerd::core::plan
