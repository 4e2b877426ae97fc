#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/job/model_options.h"
#include "core/plan/cost/cost_model.h"
#include "parallel/group/group.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/placement.h"

namespace trainerd::core::plan {

/// The first tensor- and data-parallel rank of a pipeline rank: it holds as much as any of them.
std::int64_t representative(const parallel::Layout& layout, std::int64_t pipeline_rank);

/// Where the groups of the pipeline ranks' representatives lie. The same for all layouts of one grid and one
/// grouping of its data-parallel ranks.
class GroupPlaces {
 public:
  GroupPlaces(const job::ModelOptions& model, const parallel::Layout& layout,
              const parallel::Topology& topology);

  /// Of the groups that the rank is in; not of `pp`.
  using ByGroup = std::array<std::optional<GroupPlace>, parallel::kGroups.size()>;
  const ByGroup& of(std::int64_t pipeline_rank) const {
    return places_[static_cast<std::size_t>(pipeline_rank)];
  }
  const GroupPlace& at(std::int64_t pipeline_rank, parallel::Group group) const {
    return of(pipeline_rank)[static_cast<std::size_t>(group)].value();
  }
  /// Between two pipeline ranks, one the next of the other (after the last comes the first).
  parallel::Link link(std::int64_t from, std::int64_t to) const;
  /// PlacedGrid::tp_problem.
  std::string tp_problem() const { return placed_.tp_problem(); }

 private:
  parallel::PlacedGrid placed_;
  std::vector<parallel::Link> next_;  // by pipeline rank: to the one after it
  std::vector<ByGroup> places_;
};

}  // namespace trainerd::core::plan
